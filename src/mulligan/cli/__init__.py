"""The command line: rendering and exit codes only. ``main.py`` is the entry point."""
