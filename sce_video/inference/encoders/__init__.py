"""Third-party encoders as checkpoints of this package."""
