"""Stores: made, moved, and listed with their projects."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mulligan.locate.identity import identity_of
from mulligan.locate.registry import STORES, Known, damaged_stores, known_stores


def stores_view(state: Path) -> dict[str, Any]:
    """Return the stores that a state directory knows, and what of it cannot be read as a store.

    Raises ``PermissionError`` for a directory that may not be listed: that is not an empty one.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        os.scandir(state / STORES).close()
    damaged = [{"store": str(path), "problem": why} for path, why in damaged_stores(state)]
    return {"stores": [store_view(known) for known in known_stores(state)], "damaged": damaged}


def store_view(known: Known) -> dict[str, Any]:
    """Return a store with its project, its size and when it was last written."""
    return {
        "store": str(known.path),
        "id": known.id,
        "inside": known.inside,
        "project": known.project and str(known.project),
        "project_status": project_status(known),
        "size_bytes": size_on_disk(known.path),
        "last_used": datetime.fromtimestamp(_last_used(known.path), UTC),
    }


def project_status(known: Known) -> str:
    """Return here, renewed (another directory is at that path), gone or unknown."""
    place = next((place for place in known.places if place.session is None), None)
    if known.inside:
        return "here"
    if place is None:
        return "unknown"
    try:
        # By identity: another directory may be at that path now.
        found = identity_of(Path(place.path))
    except OSError:
        return "gone"
    return "here" if place.identity.matches(found) else "renewed"


def size_on_disk(directory: Path) -> int:
    """Return the bytes that files occupy; the journal's file is mostly a hole."""
    total = 0
    for root, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):  # a temporary file of a process that is writing
                total += os.lstat(os.path.join(root, name)).st_blocks * 512
    return total


def _last_used(store: Path) -> float:
    """Return when a store was last written; one whose journal is gone is listed like any other."""
    try:
        return (store / "journal" / "data.mdb").stat().st_mtime
    except OSError:
        return store.stat().st_mtime


def made_store_view(
    store: Path, directory: Path, sessions: Sequence[str], *, created: bool
) -> dict[str, Any]:
    """Return the store of a directory, made just now or found there."""
    return {
        "store": str(store),
        "directory": str(directory),
        "created": created,
        "sessions": list(sessions),
    }


def moved_store_view(old: Path, new: Path) -> dict[str, Any]:
    """Return a store that was moved, or that was there already."""
    return {"store": str(new), "from": str(old), "moved": new != old}
