"""Annotation lists from the official downloads of data sets: see ``sce-video prepare``."""
