"""Verification of a store."""
