"""The supervisor: runs a team of agents as processes and keeps it alive and recoverable.

``workflow`` says what to run and ``preflight`` checks that it is there. ``machine`` decides (no
I/O), ``runner`` carries it out through ``team``, ``process``, ``heartbeat``, ``health``,
``checkpoint_thread`` and ``records``. ``sink`` outlives it, ``orphans`` ends what an earlier
supervisor left running, and ``requests`` asks a running one for a pause or a checkpoint.
"""
