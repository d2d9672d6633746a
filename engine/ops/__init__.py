"""Operations inside the exported graph, one file each; reference.py is their oracle."""
