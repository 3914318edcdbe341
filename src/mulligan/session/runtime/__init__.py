"""A session inside of an agent's process: its loop and its heartbeat."""
