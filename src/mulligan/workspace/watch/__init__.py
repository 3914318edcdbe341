"""Watching: find what changed in a directory without a scan."""
