"""Annotation lists from the official downloads of datasets: see ``sce-video prepare``."""
