"""The workspace: the agent's files, captured into trees of objects and brought back from them.

``entries`` is what a tree holds, ``ignore`` what is left out, ``index`` what was seen last,
``scan`` finds what changed since, ``content`` reads files into objects, ``capture`` joins them.
``plan`` and ``apply`` bring a tree back in place; ``fresh`` writes one into an empty directory with
``fill``. ``scan worker`` and ``checkout worker`` use the other cores for large trees.
"""
