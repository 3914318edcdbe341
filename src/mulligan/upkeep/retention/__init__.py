"""Retention: which checkpoints stay, by which rule, and removing the others."""
