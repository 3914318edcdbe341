"""Upkeep of a store: verify."""
