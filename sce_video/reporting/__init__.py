"""Comparison of measured results with the paper: published numbers, result files, the report."""
