"""Fixed beam search: the arithmetic, the legal sequences that may bound it, and how beams are kept."""
