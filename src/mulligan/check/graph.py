"""Following references: everything that events, keyframes and trees need exists."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Set
from typing import Any, NamedTuple

from mulligan import codec
from mulligan.check.findings import Findings
from mulligan.codec import MapBranch, Ref
from mulligan.document.document import Document
from mulligan.document.nodes import references
from mulligan.engine import Engine
from mulligan.errors import MulliganError
from mulligan.model import Digest, ObjectKind
from mulligan.workspace.capture.base_parts import base_parts
from mulligan.workspace.capture.patch import TreePatch, leaf_in, read_patch
from mulligan.workspace.entries import FILE, split_chunks


class User(NamedTuple):
    """What needs an object: in words, and as the number of a session and a seq."""

    name: str
    session: int
    seq: int


class _Base(NamedTuple):
    """The paths that all patches to a base set, and what needs the first of these patches."""

    paths: set[str]
    user: User


class Graph:
    """Follows references from events and keyframes; each object is checked once."""

    def __init__(
        self, engine: Engine, findings: Findings, full: bool, lost: Set[Digest] = frozenset()
    ) -> None:
        self._engine = engine
        self._findings = findings
        self._full = full
        self._known_lost = lost
        self._seen: set[Digest] = set()
        self._seen_trees: set[Digest] = set()
        self._bases: dict[Digest, _Base] = {}
        self._patched: defaultdict[Digest, set[str]] = defaultdict(set)

    def follow(self, value: Any, user: User) -> None:
        """Check that everything a frozen value refers to exists."""
        pending = list(references(value))
        while pending:
            digest = pending.pop()
            if digest in self._seen:
                continue
            # Marked before it is read: a missing object is reported once, with its first user.
            self._seen.add(digest)
            try:
                pending += self._inside(digest)
            except MulliganError as error:
                self._report(digest, user, error)

    def follow_tree(self, tree: Digest, user: User) -> None:
        """Check that a tree, everything below it and the content of its files exist.

        The base of a patch is checked by :meth:`follow_bases`.
        """
        try:
            patch = self._check_patch(tree)
        except MulliganError as error:
            self._report(tree, user, error)
            return
        if patch.base == tree:
            self._follow_parts([tree], user)
        elif tree not in self._seen_trees:
            self._seen_trees.add(tree)
            base = self._bases.setdefault(patch.base, _Base(set(patch.entries), user))
            base.paths.intersection_update(patch.entries)
            entries = map(codec.decode, patch.entries.values())
            self._follow_parts(self._check_parts(tree, entries, user), user)

    def follow_bases(self) -> None:
        """Check the bases of all patches, without the files that every patch replaces or removes.

        Their content may be gone: no checkpoint has it.
        """
        for digest, base in self._bases.items():
            if digest in self._seen_trees:
                continue
            try:
                parts = base_parts(digest, base.paths, self._engine.load)
            except MulliganError as error:
                self._report(digest, base.user, error)
                continue
            self._follow_parts(self._check_parts(digest, parts.whole, base.user), base.user)

    def _follow_parts(self, pending: Iterable[Digest], user: User) -> None:
        rest = set(pending)
        # Level by level, so that many objects are read, and looked up, together.
        while batch := rest - self._seen_trees:
            self._seen_trees |= batch
            rest, lists = set(), list[bytes]()
            for digest, data in self._loaded(batch, user):
                rest.update(self._divide(digest, map(codec.decode, [data]), lists, user))
            self._check_chunks(lists, user)

    def _check_parts(self, owner: Digest, parts: Iterable[Any], user: User) -> list[Digest]:
        """Check the chunks of the files in parts of a tree; return what else they refer to."""
        lists: list[bytes] = []
        found = self._divide(owner, parts, lists, user)
        self._check_chunks(lists, user)
        return found

    def _divide(
        self, owner: Digest, parts: Iterable[Any], lists: list[bytes], user: User
    ) -> list[Digest]:
        """Add the chunk lists of the files in parts of a tree; return what else they refer to."""
        found: list[Digest] = []
        try:
            for part in parts:
                below, long = tree_parts(part)
                found += below
                lists += [self._chunk_list(one) for one in long]
        except MulliganError as error:
            self._report(owner, user, error)
        return found

    def _loaded(self, digests: Set[Digest], user: User) -> Iterator[tuple[Digest, bytes]]:
        """Yield values with their bytes, read together; report those that cannot be read."""
        missing = set(digests)
        for digest, data in self._engine.objects.get_all(ObjectKind.VALUE, digests):
            missing.discard(digest)
            yield digest, data
        for digest in sorted(missing):
            try:
                yield digest, self._engine.load(digest)
            except MulliganError as error:
                self._report(digest, user, error)

    def _chunk_list(self, found: bytes | Ref) -> bytes:
        """Return the digests of a file's chunks; those of a large file are an object."""
        value = codec.decode(self._engine.load(found.digest)) if isinstance(found, Ref) else found
        return value if isinstance(value, bytes) else b""

    def _check_patch(self, tree: Digest) -> TreePatch:
        """Check that a patch can be applied to its base; each part of a base is checked once."""
        document = Document({}, self._engine.load)
        patch = read_patch(document, tree)
        base, known = document.with_root(Ref(patch.base)), self._patched[patch.base]
        for path in patch.entries.keys() - known:
            leaf_in(base, tuple(path.split("/")))
            known.add(path)
        return patch

    def _check_chunks(self, lists: list[bytes], user: User) -> None:
        """Check that all chunks of some files exist, with one look-up for all of them."""
        chunks = set(split_chunks(b"".join(lists))) - self._seen
        self._seen |= chunks
        with self._engine.read() as view:
            missing = chunks - view.indexed(chunks)
            # That the event of a purge names what it removed is checked with the purges.
            missing -= view.tombstones(missing).keys()
        for chunk in sorted(missing):
            self._report(chunk, user, "it is missing")

    def _report(self, digest: Digest, user: User, detail: object) -> None:
        where = f"{digest.hex()}, needed by {user.name}"
        # What a repair has recorded as lost is known, and no reason to repair again.
        is_known = digest in self._known_lost
        tell = self._findings.warn if is_known else self._findings.report
        tell("needed", where, detail, digest=digest, session=user.session, seq=user.seq)

    def _inside(self, digest: Digest) -> list[Digest]:
        if self._full:
            return list(references(codec.decode(self._engine.load(digest))))
        # Loading a missing object raises the reason; others are only read with ``full``.
        if not self._engine.objects.has(digest):
            self._engine.load(digest)
        return []


def tree_parts(node: Any) -> tuple[list[Digest], list[Any]]:
    """Return what a part of a tree refers to, and the chunk lists of the files in it.

    A chunk list is digests, or a reference to them. Chunks are named by their digests, not by
    references.
    """
    found: list[Digest] = []
    lists: list[Any] = []
    pending = [node]
    while pending:
        part = pending.pop()
        if isinstance(part, list) and len(part) > 4 and part[0] == FILE:
            lists.append(part[4])
            if len(part) > 5:  # most files have nothing more
                found += references(part[5:])
        elif isinstance(part, dict):
            for value in part.values():
                # Most are files with nothing more than their chunks.
                if type(value) is list and len(value) == 5 and value[0] == FILE:
                    lists.append(value[4])
                else:
                    pending.append(value)
        elif isinstance(part, MapBranch):
            pending += part.slots
        else:
            found += references(part)
    return found, lists
