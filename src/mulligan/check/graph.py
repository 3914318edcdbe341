"""Following references: everything that events, keyframes and trees need exists."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Set
from typing import Any, NamedTuple

from mulligan import codec
from mulligan.check.findings import Findings
from mulligan.codec import MapBranch, Ref
from mulligan.document.document import Document
from mulligan.engine import Engine
from mulligan.errors import MulliganError
from mulligan.model import Digest
from mulligan.timeline.references import references
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

    def _follow_parts(self, pending: list[Digest], user: User) -> None:
        while pending:
            digest = pending.pop()
            if digest in self._seen_trees:
                continue
            self._seen_trees.add(digest)
            try:
                node = codec.decode(self._engine.load(digest))
            except MulliganError as error:
                self._report(digest, user, error)
                continue
            pending += self._check_parts(digest, [node], user)

    def _check_parts(self, owner: Digest, parts: Iterable[Any], user: User) -> list[Digest]:
        """Check the chunks of the files in parts of a tree; return what else they refer to."""
        found: list[Digest] = []
        try:
            for part in parts:
                below, lists = tree_parts(part)
                found += below
                self._check_chunks(lists, user)
        except MulliganError as error:
            self._report(owner, user, error)
        return found

    def _check_patch(self, tree: Digest) -> TreePatch:
        """Check that a patch can be applied to its base; each part of a base is checked once."""
        document = Document({}, self._engine.load)
        patch = read_patch(document, tree)
        base, known = document.with_root(Ref(patch.base)), self._patched[patch.base]
        for path in patch.entries.keys() - known:
            leaf_in(base, tuple(path.split("/")))
            known.add(path)
        return patch

    def _check_chunks(self, lists: list[Any], user: User) -> None:
        """Check that all chunks of some files exist, with one look-up for all of them."""
        long = [
            codec.decode(self._engine.load(one.digest)) for one in lists if isinstance(one, Ref)
        ]
        digests = b"".join(one for one in (*lists, *long) if isinstance(one, bytes))
        chunks = set(split_chunks(digests)) - self._seen
        self._seen |= chunks
        with self._engine.read() as view:
            missing = chunks - view.locate_all(chunks).keys()
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
            found += references(part[5:])
        elif isinstance(part, dict):
            pending += part.values()
        elif isinstance(part, MapBranch):
            pending += part.slots
        else:
            found += references(part)
    return found, lists
