"""What a prefill node makes of a sample's last hidden state, one head a file."""
