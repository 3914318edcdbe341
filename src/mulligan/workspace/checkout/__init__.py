"""Checking out: a tree written into an empty directory."""
