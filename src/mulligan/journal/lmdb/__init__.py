"""The journal's tables in LMDB.

``tables`` is the entry point. ``environment`` is shared by the handles of a process; ``map_size``
and ``errors`` define its size and its errors. Before LMDB reads a file, ``examine`` uses
``clean_close`` and ``pages`` to decide whether it is sound. ``lockfile`` and ``write_lock`` find
the process that has it open and the one that writes. ``layout`` describes LMDB's own files.
"""
