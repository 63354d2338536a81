"""Conversion of weights from and to the layouts of other code bases."""
