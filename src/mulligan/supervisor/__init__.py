"""The supervisor: runs a team of agents as processes and keeps it alive and recoverable.

``workflow`` says what to run, ``places`` whether it is there, ``machine`` decides (purely),
``shell`` does it. ``process``, ``team``, ``beats``, ``keeper``, ``health`` and ``records`` are its
hands, ``sink`` is what outlives it; ``strays`` clears up after an earlier one; ``requests`` is for
those who want something of one that runs.
"""
