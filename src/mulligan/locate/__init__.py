"""Which store a directory belongs to: pointers, the registry of stores, projects, git excludes."""
