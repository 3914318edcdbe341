"""Capturing: from a directory to a tree of objects."""
