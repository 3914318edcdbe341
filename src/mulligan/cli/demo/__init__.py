"""The story of ``mulligan demo``, told with real processes."""
