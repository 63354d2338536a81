"""Helpers that know nothing of video: atomic files, several processes, safe unpickling."""
