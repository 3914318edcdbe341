"""Damage to one object of a store, for tests."""

from __future__ import annotations

from mulligan import Digest
from mulligan.engine import Engine
from mulligan.model import Location, ObjectKind


def flip_object(engine: Engine, content: bytes) -> Digest:
    """Flip a bit in the middle of the stored object with this content; return its digest."""
    digest, place = find_object(engine, content)
    assert engine.directory is not None
    pack = engine.directory / "packs" / engine.objects.area_name(place.area)
    with pack.open("rb+") as file:
        file.seek(place.offset + place.length // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    return digest


def find_object(engine: Engine, content: bytes) -> tuple[Digest, Location]:
    """Return the largest object that is a part of the content, or contains its beginning."""
    with engine.read() as view:
        places = dict(view.locations())
    found: list[tuple[int, Digest]] = []
    for kind in (ObjectKind.CHUNK, ObjectKind.VALUE):
        for digest, data in engine.objects.get_all(kind, places):
            if content[:1000] in data or (len(data) > 1000 and data in content):
                found.append((len(data), digest))
    _, digest = max(found)
    return digest, places[digest]
