"""Hooks of the training loop."""
