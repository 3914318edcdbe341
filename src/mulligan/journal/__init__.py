"""The journal: sessions, events, checkpoints, leases and the index of objects.

``protocol`` says what a journal does, ``kv`` does it over any ordered tables with transactions,
``lmdb`` and ``memory`` are such tables, ``chain`` is the hash chain, ``lock_owner`` names the
process that others wait for.
"""
