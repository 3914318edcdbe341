"""What of a store is live, found by walking everything that its events refer to."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mulligan.engine import Engine


def live_bytes(engine: Engine, place: Path) -> int:
    """Return what the live content takes when it is stored anew, in one go.

    That is every reachable object in a new store, and the journal without its free pages.
    """
    with tempfile.TemporaryDirectory(dir=place) as scratch:
        return _objects(engine, Path(scratch)) + _journal(engine, Path(scratch))


def _objects(engine: Engine, scratch: Path) -> int:
    from mulligan.store import engine_of
    from mulligan.testing.stores import open_store
    from mulligan.upkeep.space.mark import Marker

    marker = Marker(engine)
    marker.collect_candidates()
    marker.mark_all()
    with engine.read() as view:
        found = [one for one in view.locations() if not marker.set.is_garbage(one[0])]
    found.sort(key=lambda one: (one[1].area, one[1].offset, one[1].slot))
    with open_store(scratch / "store") as copy, engine_of(copy).pin():
        bundle = engine_of(copy).bundle()
        for digest, location in found:
            entries = engine.objects.entries_at(location, -1) or ()
            kind = entries[location.slot].kind
            bundle.put(kind, engine.objects.get(kind, digest))
        return bundle.flush().size


def _journal(engine: Engine, scratch: Path) -> int:
    """Return the size of a compact copy; of a copy, because LMDB opens a file once a process."""
    import lmdb

    assert engine.directory is not None
    source, compact = scratch / "journal", scratch / "compact"
    source.mkdir()
    compact.mkdir()
    shutil.copy(engine.directory / "journal" / "data.mdb", source)
    with lmdb.open(str(source), max_dbs=32, map_size=1 << 32) as copy:
        copy.copy(str(compact), compact=True)
    return (compact / "data.mdb").stat().st_size
