"""Places on a timeline and what can be said about them: points, checkpoints, diffs, restores."""
