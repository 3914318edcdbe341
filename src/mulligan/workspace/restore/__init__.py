"""Restoring: from a tree to a directory that holds files already."""
