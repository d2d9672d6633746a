"""The wire contract: messages, codec, headers. Knows neither Kafka nor torch (client.py apart)."""
