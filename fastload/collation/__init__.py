"""Collation: samples of different sizes joined to one batch of tensors."""
