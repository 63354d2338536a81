"""Trainings and tests as a whole: settings for a folder, launch, seeds, sweeps, splits, doctor."""
