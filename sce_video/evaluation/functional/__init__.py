"""Evaluation protocols as pure functions of tensors and arrays."""
