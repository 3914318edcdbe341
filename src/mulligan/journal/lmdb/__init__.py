"""The journal's tables in LMDB.

``tables`` is the door. ``environment`` is what the handles of a process share, ``map_size`` and
``errors`` its size and its errors. ``examine`` decides by ``clean_close`` and ``pages`` whether a
file is sound before LMDB reads it; ``lockfile`` and ``write_lock`` tell which process has it open
and which one writes. ``layout`` is all that is known here of LMDB's own files.
"""
