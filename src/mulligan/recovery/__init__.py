"""Bringing sessions back: what was interrupted, what to do about it, and what broke it."""
