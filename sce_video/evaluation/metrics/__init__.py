"""Registered metrics, named in configs by ``test_evaluator`` and ``val_evaluator``."""
