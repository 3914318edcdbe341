"""Trees as plain values, whichever way they are stored."""

from __future__ import annotations

from typing import Any

from mulligan.model import Digest
from mulligan.state.document import Document, LoadBytes
from mulligan.workspace.patch import open_tree


def plain_tree(load: LoadBytes, tree: Digest | None) -> dict[str, Any]:
    """Return all that is in a tree: directories as dicts, all else as lists."""
    assert tree is not None
    document = open_tree(Document({}, load), tree)
    found: dict[str, Any] = document.plain(document.root)
    return found
