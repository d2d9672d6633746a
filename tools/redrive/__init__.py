"""Dead letters back to the topics they came from."""
