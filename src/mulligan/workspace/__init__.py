"""The workspace: an agent's files, captured into trees of objects and restored from them.

``capture`` turns a directory into a tree, ``watch`` learns what changed without a scan, ``restore``
brings a tree back in place and ``checkout`` writes one into an empty directory. ``entries`` is what
a tree holds, ``locks`` keeps captures and restores apart, ``workspace`` joins them for a session.
"""
