"""Whole training and test runs: settings for a folder, launch, seeds, sweeps, splits, doctor."""
