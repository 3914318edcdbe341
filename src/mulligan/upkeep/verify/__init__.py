"""Checks of the store by itself: settings, records, and the thread that runs them."""
