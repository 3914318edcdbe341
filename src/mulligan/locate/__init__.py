"""Which store a directory has: pointers, the registry of stores, projects, and what git is told."""
