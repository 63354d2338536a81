"""Helpers without a field of their own: atomic files, several processes, safe unpickling."""
