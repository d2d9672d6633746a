// go run . SERVERS TOPIC REPLY_TOPIC PIPELINE ID TEXT...
package main

import (
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/IBM/sarama"
)

func main() {
	servers, topic, replyTopic, pipeline, id := os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5]
	settings := sarama.NewConfig()
	settings.Version = sarama.V2_1_0_0 // the oldest that Kafka 4 talks to
	settings.Producer.RequiredAcks = sarama.WaitForAll
	settings.Producer.Return.Successes = true
	producer, err := sarama.NewSyncProducer(strings.Split(servers, ","), settings)
	if err != nil {
		log.Fatal(err)
	}
	defer producer.Close()
	partition, offset, err := producer.SendMessage(&sarama.ProducerMessage{
		Topic: topic,
		Value: sarama.ByteEncoder(request(id, pipeline, os.Args[6:], 2000)),
		Headers: []sarama.RecordHeader{
			{Key: []byte("kafka_correlationId"), Value: []byte(id)}, // any bytes; the reply has the same
			{Key: []byte("kafka_replyTopic"), Value: []byte(replyTopic)},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(topic, partition, offset)
}
