"""Drills: a recovery tried out in a scratch directory."""
