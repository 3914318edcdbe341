"""A directory put together by hand, or in part, is encoded as the codec would have it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from mulligan import codec
from mulligan.document import nodes
from mulligan.document.document import settle_root
from mulligan.model import Digest
from mulligan.workspace.capture.index import Nodes, Seen, SeenDirectory
from mulligan.workspace.capture.tree import Changed, stored_tree
from mulligan.workspace.entries import SELF, to_name

raw_names = st.binary(min_size=1, max_size=255).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
)
names = st.one_of(
    st.from_regex(r"[a-z]{1,3}[0-9]{0,3}(\.py)?", fullmatch=True).map(str.encode),
    st.text(min_size=1, max_size=80).map(lambda text: text.encode("utf-8", "ignore")),
    raw_names,
).filter(lambda name: name and b"/" not in name and b"\0" not in name and len(name) < 256)
contents = st.integers(min_value=0, max_value=1 << 60)


def _leaf(content: int) -> Seen:
    # The last field is as long as a digest, so that large directories have parts of their own.
    return Seen(b"", 0, codec.encode(["f", 0o644, content, 3, content.to_bytes(32, "big")]))


class Store:
    """Objects by digest, and a directory with nothing but leaves in it."""

    def __init__(self) -> None:
        self.objects: dict[Digest, bytes] = {}
        self.root = SeenDirectory(1, 1, 1, 0o755, {}, {}, {}, codec.encode(["d", 0o755, 1]))
        self.kept: Nodes = {}

    def put(self, data: bytes) -> Digest:
        digest = codec.value_digest(data)
        self.objects[digest] = data
        return digest

    def change(self, changes: dict[bytes, int | None]) -> Digest:
        """Set or delete leaves, and store what changed."""
        for name, content in changes.items():
            self.root.leaves.pop(name, None)
            if content is not None:
                self.root.leaves[name] = _leaf(content)
        changed: Changed = {b"": {b"", *changes}}
        return stored_tree({b"": self.root}, changed, self.put, self.kept)

    def expected(self) -> tuple[Digest, dict[Digest, bytes]]:
        """What the codec makes of the whole directory."""
        made: dict[Digest, bytes] = {}

        def put(data: bytes) -> Digest:
            digest = codec.value_digest(data)
            made[digest] = data
            return digest

        entries = {to_name(name): Raw(leaf.entry) for name, leaf in self.root.leaves.items()}
        entries[SELF] = Raw(self.root.entry)
        return settle_root(_decoded(nodes.build_trie(entries)), put), made


def _decoded(node: object) -> object:
    if isinstance(node, codec.MapBranch):
        return codec.MapBranch(node.depth, node.count, [_decoded(slot) for slot in node.slots])
    if isinstance(node, dict):
        return {name: codec.decode(part) for name, part in node.items()}
    return node


@given(st.dictionaries(names, contents, max_size=120))
def test_a_directory_is_encoded_as_the_codec_has_it(leaves: dict[bytes, int]) -> None:
    store = Store()
    tree = store.change(dict(leaves))
    expected, objects = store.expected()
    assert tree == expected
    assert store.objects == objects


@given(
    st.sampled_from([50, 64, 70, 400, 1100]),
    st.lists(
        st.dictionaries(st.integers(0, 450), st.none() | contents, min_size=1, max_size=6),
        max_size=6,
    ),
)
def test_a_large_directory_that_changes_is_as_one_made_anew(
    size: int, rounds: list[dict[int, int | None]]
) -> None:
    store = Store()
    store.change({b"file%d" % number: number for number in range(size)})
    for changes in rounds:
        tree = store.change({b"file%d" % number: content for number, content in changes.items()})
        expected, objects = store.expected()
        assert tree == expected
        assert objects.keys() <= store.objects.keys()
