"""The parts of a session that have their own API."""
