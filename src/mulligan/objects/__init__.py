"""Content-addressed storage: immutable bytes kept under their digest.

``protocol`` says what every store does; ``packs`` keeps objects in append-only pack files and
``memory`` in a dictionary. Under ``packs``: ``frames`` is the format as pure functions, ``writer``
owns the pack this process appends to, ``reader`` finds and checks bytes, ``scan`` walks a pack.
"""
