"""Re-encoding a dataset for random access: see ``sce-video repack``."""
