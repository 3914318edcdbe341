"""One module per command: options, calls into the library, exit codes."""
