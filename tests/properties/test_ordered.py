"""Large dicts by sorted keys: any history gives the shape of the content, and all is found."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mulligan import codec
from mulligan.codec import OrderedBranch
from mulligan.document import nodes, ordered
from mulligan.document.compare import differences
from mulligan.document.document import MISSING, Document, settle_root
from mulligan.model import Digest, ObjectKind
from mulligan.upkeep.purge.text import places, redacted

BEGIN = [f"{n:05}" for n in range(4_000) if ordered.level(f"{n:05}")]
"""Keys at which slots begin, of several levels: in random keys, they would be rare."""

KEYS = st.sampled_from(BEGIN) | st.integers(0, 4_000).map(lambda n: f"{n:05}")
CHANGES = st.lists(st.tuples(KEYS, st.none() | st.integers(0, 9)), max_size=40)
STARTS = st.tuples(st.integers(1_000, 1_400), st.integers(1, 3), st.integers(0, 900)).map(
    lambda given: {f"{given[2] + n * given[1]:05}": n for n in range(given[0])}
)


class Objects:
    """Objects in a dictionary, and how many were loaded."""

    def __init__(self) -> None:
        self.contents: dict[Digest, bytes] = {}
        self.loaded: set[Digest] = set()

    def put(self, data: bytes) -> Digest:
        digest = codec.digest(ObjectKind.VALUE, data)
        self.contents[digest] = data
        return digest

    def load(self, digest: Digest) -> bytes:
        self.loaded.add(digest)
        return self.contents[digest]

    def stored(self, node: Any) -> Document:
        """Return a node as another process finds it: its large parts are references."""
        return Document(codec.decode(self.contents[settle_root(node, self.put)]), self.load)


def wide(entries: dict[str, int]) -> dict[str, Any]:
    """Return entries that are large enough for leaves to be objects of their own."""
    return {key: f"{value} " * 60 for key, value in entries.items()}


def changed(document: Document, key: str, value: str | None) -> Document:
    if value is None:
        return document if document.find((key,)) is MISSING else document.delete((key,))
    return document.set((key,), value)


@given(start=STARTS, changes=CHANGES)
def test_any_history_gives_the_shape_of_the_content(
    start: dict[str, int], changes: list[tuple[str, int | None]]
) -> None:
    objects, model = Objects(), wide(start)
    document = objects.stored(nodes.build_map(dict(model)))
    for key, number in changes:
        value = None if number is None else f"{number} " * 60
        document = objects.stored(changed(document, key, value).root)
        model.pop(key, None)
        if value is not None:
            model[key] = value
        assert document.find((key,)) == (MISSING if value is None else value)
    assert codec.encode(document.root) == codec.encode(
        objects.stored(nodes.build_map(dict(model))).root
    )
    assert document.plain(document.root) == model
    assert list(document.plain(document.root)) == sorted(model)
    assert nodes.size(document.resolved(document.root)) == len(model)


@given(start=STARTS, changes=CHANGES)
def test_differences_are_those_of_the_entries(
    start: dict[str, int], changes: list[tuple[str, int | None]]
) -> None:
    objects, model = Objects(), wide(start)
    before = objects.stored(nodes.build_map(dict(model)))
    after, end = before, dict(model)
    for key, number in changes:
        value = None if number is None else f"{number} " * 60
        after = changed(after, key, value)
        end.pop(key, None)
        if value is not None:
            end[key] = value
    found = {path: (one, other) for path, one, other in differences(after, before.root, after.root)}
    keys = [key for key in sorted({*model, *end}) if model.get(key) != end.get(key)]
    assert found == {(key,): (model.get(key, MISSING), end.get(key, MISSING)) for key in keys}


@given(
    start=STARTS,
    changes=CHANGES,
    purged=st.sampled_from(BEGIN) | st.integers(0, 4_000).map(lambda n: f"{n:05}"),
)
def test_other_keys_are_found_after_a_purge_of_one(
    start: dict[str, int], changes: list[tuple[str, int | None]], purged: str
) -> None:
    model = {**{key: str(value) for key, value in start.items()}, purged: "x"}
    node = redacted(
        nodes.build_map(dict(model)), lambda text: text.replace(purged.encode(), b"~gone~")
    )
    assert not any(purged.encode() in text for _, text in places(node))
    document = Document(node, Objects().load)
    del model[purged]
    for key, number in changes:
        if key != purged:
            value = None if number is None else str(number)
            document = changed(document, key, value)
            model.pop(key, None)
            if value is not None:
                model[key] = value
    assert document.plain(document.root) == {**model, "~gone~": "x"}
    assert all(document.find((key,)) == value for key, value in model.items())


def test_keys_in_their_order_change_the_last_leaf_alone() -> None:
    objects = Objects()
    document = objects.stored(nodes.build_map(wide({f"{n:05}": n for n in range(10_000)})))
    assert isinstance(document.root, OrderedBranch)
    before = set(objects.contents)
    for number in range(10_000, 10_050):
        document = document.set((f"{number:05}",), f"{number} " * 60)
    objects.stored(document.root)
    new = [data for digest, data in objects.contents.items() if digest not in before]
    # 50 entries of 360 bytes, the leaf they continue, and the branches above.
    assert sum(map(len, new)) < 60_000
    assert len(objects.loaded) < 10
