"""Watching: what changed in a directory, known without a scan."""
