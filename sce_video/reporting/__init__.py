"""Comparison of measured results with the paper's numbers, and the content of the report."""
