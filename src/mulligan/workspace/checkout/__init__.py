"""Checkout: a tree written into an empty directory."""
