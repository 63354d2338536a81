"""Helpers that are independent of video: atomic files, several processes, safe unpickling."""
