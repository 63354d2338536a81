"""Encoders of others (transformers) as checkpoints of this package."""
