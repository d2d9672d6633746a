"""The boundgen command line."""
