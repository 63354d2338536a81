"""From videos to features and classes with a trained network."""
