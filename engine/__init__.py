"""What is built and run: static DAG, models, artifacts, lanes. Knows neither Kafka nor the wire."""
