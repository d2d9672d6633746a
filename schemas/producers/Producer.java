import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

import static java.nio.charset.StandardCharsets.UTF_8;

/** Needs kafka-clients alone: java -cp "kafka-clients.jar:..." Producer SERVERS TOPIC REPLY_TOPIC PIPELINE ID TEXT... */
public final class Producer {
    public static void main(String[] args) throws Exception {
        String topic = args[1], replyTopic = args[2], pipeline = args[3], id = args[4];
        byte[] value = request(id, pipeline, List.of(args).subList(5, args.length), 2000);
        var record = new ProducerRecord<byte[], byte[]>(topic, value);
        record.headers().add("kafka_correlationId", id.getBytes(UTF_8)); // any bytes; the reply has the same
        record.headers().add("kafka_replyTopic", replyTopic.getBytes(UTF_8));
        var settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("acks", "all");
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            var sent = producer.send(record).get();
            System.out.println(sent.topic() + " " + sent.partition() + " " + sent.offset());
        }
    }

    /** {"v": 1, "id": id, "pipeline": pipeline, "samples": [{"text": text}, ...], "timeout_ms": timeoutMs} */
    static byte[] request(String id, String pipeline, List<String> texts, long timeoutMs) throws IOException {
        var bytes = new ByteArrayOutputStream();
        var out = new DataOutputStream(bytes); // big-endian, as msgpack is
        header(out, 0x80, 0xde, 5);
        string(out, "v");
        integer(out, 1);
        string(out, "id");
        string(out, id);
        string(out, "pipeline");
        string(out, pipeline);
        string(out, "samples");
        header(out, 0x90, 0xdc, texts.size());
        for (String text : texts) {
            header(out, 0x80, 0xde, 1);
            string(out, "text");
            string(out, text);
        }
        string(out, "timeout_ms");
        integer(out, timeoutMs);
        return bytes.toByteArray();
    }

    /** Begins a map (0x80, 0xde) of so many pairs or a list (0x90, 0xdc) of so many items; up to 65,535. */
    static void header(DataOutputStream out, int shortForm, int longForm, int length) throws IOException {
        if (length < 16) {
            out.writeByte(shortForm | length);
        } else {
            out.writeByte(longForm);
            out.writeShort(length);
        }
    }

    static void string(DataOutputStream out, String text) throws IOException {
        byte[] utf8 = text.getBytes(UTF_8);
        if (utf8.length < 32) {
            out.writeByte(0xa0 | utf8.length);
        } else if (utf8.length < 256) {
            out.writeByte(0xd9);
            out.writeByte(utf8.length);
        } else if (utf8.length < 65536) {
            out.writeByte(0xda);
            out.writeShort(utf8.length);
        } else {
            out.writeByte(0xdb);
            out.writeInt(utf8.length);
        }
        out.write(utf8);
    }

    /** Not negative; the shortest form, though a reader takes any. */
    static void integer(DataOutputStream out, long value) throws IOException {
        if (value < 128) {
            out.writeByte((int) value);
        } else if (value < 256) {
            out.writeByte(0xcc);
            out.writeByte((int) value);
        } else if (value < 65536) {
            out.writeByte(0xcd);
            out.writeShort((int) value);
        } else if (value < 1L << 32) {
            out.writeByte(0xce);
            out.writeInt((int) value);
        } else {
            out.writeByte(0xcf);
            out.writeLong(value);
        }
    }
}
