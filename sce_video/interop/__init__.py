"""Networks and features from and for other code bases."""
