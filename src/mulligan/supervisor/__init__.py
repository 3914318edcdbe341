"""The supervisor: runs a team of agents as processes, and recovers it after a crash.

``run`` is the entry point: it takes the ``lease``, recovers the session if needed, and supervises.
``workflow`` describes what to run and ``preflight`` checks that it exists. ``machine`` decides (no
I/O), ``runner`` carries it out through ``team``, ``process``, ``heartbeat``, ``health``,
``checkpoint_thread`` and ``records``. ``sink`` outlives the supervisor, ``orphans`` ends processes
that an earlier supervisor left, and ``requests`` asks a running one for a pause or a checkpoint.
"""
