"""Coding agents: what their hooks send, what is recorded of it, and how hooks are installed."""
