"""Trees that are told as patches read as the trees that they stand for, and compare as those do."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mulligan import codec
from mulligan.codec import Ref
from mulligan.document.document import MISSING, Document, settle_root
from mulligan.model import Digest
from mulligan.workspace.capture.patch import encode_patch, open_tree
from mulligan.workspace.restore.plan import tree_changes

DIRECTORIES = ("", "a", "a/b", "a-b", "c")
names = st.sampled_from([*"xyz", "a!", "\x00\xff", "a\nb"])
paths = st.tuples(st.sampled_from(DIRECTORIES), names | st.just("")).map(
    lambda parts: "/".join(filter(None, parts)) + ("/" if parts[0] and not parts[1] else "")
)
leaves = st.integers(0, 3).map(lambda number: ["f", 0o644, number, 1, bytes([number]) * 32])
selves = st.integers(0, 3).map(lambda number: ["d", 0o755, number])
Edits = dict[str, list[Any] | None]


@st.composite
def edits(draw: st.DrawFn) -> Edits:
    found: Edits = {}
    for path in draw(st.lists(paths, max_size=12, unique=True)):
        is_self = not path or path.endswith("/")
        found[path] = draw(selves if is_self else leaves | st.none())
    return found


class Objects:
    """A base with every directory that patches are made to, as captures store it."""

    def __init__(self, start: Edits) -> None:
        self.stored: dict[Digest, bytes] = {}
        tree: dict[str, Any] = {}
        for path in DIRECTORIES:
            holder = tree
            for name in filter(None, path.split("/")):
                holder = holder.setdefault(name, {})
            holder[""] = ["d", 0o755, 9]
        document = Document(tree, self.stored.__getitem__)
        for path, entry in start.items():
            if entry is not None:
                document = document.set(tuple(path.split("/")), entry)
        self.base = self._in_full(document.root)

    @property
    def document(self) -> Document:
        return Document({}, self.stored.__getitem__)

    def patched(self, changes: Edits) -> Digest:
        encoded = {
            path: None if entry is None else codec.encode(entry) for path, entry in changes.items()
        }
        return self.put(encode_patch(self.base, encoded))

    def in_full(self, changes: Edits) -> Digest:
        """Store what the changes make of the base, with no patch."""
        document = self.document.with_root(Ref(self.base))
        for path, entry in changes.items():
            parts = tuple(path.split("/"))
            if entry is not None:
                document = document.set(parts, entry)
            elif document.find(parts) is not MISSING:
                document = document.delete(parts)
        return self._in_full(document.plain(document.root))

    def _in_full(self, node: dict[str, Any]) -> Digest:
        """Store a directory with those in it as objects of their own, as captures do."""
        parts = {
            name: Ref(self._in_full(value)) if isinstance(value, dict) else value
            for name, value in node.items()
        }
        return settle_root(parts, self.put)

    def put(self, data: bytes) -> Digest:
        digest = codec.value_digest(data)
        self.stored[digest] = data
        return digest


@given(edits(), edits(), edits())
def test_a_patch_is_read_and_compared_as_the_tree_it_stands_for(
    start: Edits, one: Edits, other: Edits
) -> None:
    objects = Objects(start)
    patched = [objects.patched(one), objects.patched(other), objects.base]
    full = [objects.in_full(one), objects.in_full(other), objects.base]
    document = objects.document
    for patch, tree in zip(patched, full, strict=True):
        found, wanted = open_tree(document, patch), open_tree(document, tree)
        assert found.plain(found.root) == wanted.plain(wanted.root)
    for i in range(3):
        for j in range(3):
            expected = tree_changes(document, full[i], full[j])
            for before in (patched[i], full[i]):
                for after in (patched[j], full[j]):
                    steps = tree_changes(document, before, after)
                    assert [s for s in steps if s.before != s.after] == expected
