"""The journal: sessions, events, checkpoints, leases and the index of objects.

``protocol`` says what a journal does, ``keyed`` does it over any ordered tables with
transactions, ``lmdb`` and ``memory`` are such tables, ``chain`` is the hash chain. Below
``lmdb``: ``lmdb_env`` is the environment that a process shares, ``lmdb_map`` and ``lmdb_errors``
its size and its errors, ``examine`` decides by ``clean`` and ``pages`` whether a file is sound, and
``lockfile`` and ``waiting`` tell who has it open and who writes.
"""
