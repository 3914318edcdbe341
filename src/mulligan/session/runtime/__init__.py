"""A session inside an agent's process: its loop and its heartbeat."""
