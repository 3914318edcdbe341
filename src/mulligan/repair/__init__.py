"""Repair: rebuild the files of a store from what is intact, and heal what checkpoints lack."""
