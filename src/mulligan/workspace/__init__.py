"""The workspace: an agent's files, captured into trees of objects and restored from them.

``capture`` turns a directory into a tree. ``watch`` finds changes without a scan. ``restore``
applies a tree to a directory in place, and ``checkout`` writes one into an empty directory.
``entries`` defines what a tree holds, ``locks`` keeps captures and restores apart, and
``workspace`` joins them for a session.
"""
