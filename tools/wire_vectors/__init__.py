"""Makes schemas/vectors: messages byte by byte with what they mean, for producers in any language."""
