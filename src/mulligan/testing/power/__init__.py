"""Power cuts: a disk that records every write and flush, and its content after a cut."""
