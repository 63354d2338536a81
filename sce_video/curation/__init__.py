"""Inspection of a set of videos before training: near-duplicates, outliers, clusters, a subset."""
