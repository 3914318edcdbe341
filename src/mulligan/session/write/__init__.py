"""The write path of a session: decisions, transactions, checkpoints, restores, forks."""
