"""Power cuts: a disk that records every write and flush, and what is left of it at any moment."""
