"""Configs: load, change by name, check."""
