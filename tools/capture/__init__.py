"""What went through topics, kept in files: records byte for byte, with the replies that answer them."""
