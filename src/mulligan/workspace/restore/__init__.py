"""Restoring: apply a tree to a directory that already holds files."""
