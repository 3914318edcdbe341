"""Adapters for agent frameworks: one module per framework, imported only when asked for."""
