"""Weights in the layouts of other code bases."""
