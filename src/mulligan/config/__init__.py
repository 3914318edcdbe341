"""Settings in TOML files: tables checked against shapes; errors name file, line and key."""
