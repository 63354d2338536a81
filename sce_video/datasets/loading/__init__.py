"""Support for loading samples: shared batch memory, time limits, worker crashes, bad files."""
