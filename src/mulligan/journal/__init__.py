"""The journal: sessions, events, checkpoints, leases and the index of objects.

``protocol`` defines what a journal does. ``kv`` (with ``kv_view``, ``kv_transaction``) implements
it over any ordered tables with transactions; ``lmdb`` and ``memory`` are such tables. ``records``
encodes keys and records, ``chain`` is the hash chain, ``lock_owner`` names the owner of a lock.
"""
