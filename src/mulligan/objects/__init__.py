"""Content-addressed storage: immutable bytes kept under their digest.

``protocol`` defines what every store does; ``packs`` keeps objects in append-only pack files and
``memory`` in a dictionary. Below ``packs``: ``frames`` is the format as pure functions,
``pack_writer`` owns the pack that this process appends to, ``pack_reader`` finds and checks bytes,
``scan`` walks a pack.
"""
