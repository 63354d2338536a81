"""Re-encoding a data set for random access: see ``sce-video repack``."""
