"""The journal's tables in LMDB: its environment, its errors, and checks of its files."""
