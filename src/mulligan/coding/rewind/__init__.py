"""Rewind: a coding agent's files and conversation taken back to an earlier prompt."""
