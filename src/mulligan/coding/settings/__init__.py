"""Settings: hooks put into a coding agent's own configuration, and taken out again."""
