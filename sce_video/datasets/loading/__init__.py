"""Around the samples of a loader: shared batch memory, time limits, worker crashes, bad files."""
