"""Planning and running a purge."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path

import msgspec

from mulligan import codec
from mulligan.engine import Engine
from mulligan.errors import DamageError, PurgeRefused, ReadOnlyStore
from mulligan.failpoints import Failpoint
from mulligan.journal.protocol import Txn, View
from mulligan.layout import TOMBSTONES, add_feature
from mulligan.model import DIGEST_SIZE, Digest, ObjectKind, Purge, SessionRecord
from mulligan.store import Store, engine_of
from mulligan.timeline.checkpoints import event_at, read_checkpoint
from mulligan.timeline.sessions import known_session
from mulligan.upkeep.lock import upkeep_lock
from mulligan.upkeep.purge.bury import Burial
from mulligan.upkeep.purge.erase import STOPPED, erase
from mulligan.upkeep.purge.paths import chunks_at
from mulligan.upkeep.purge.proof import Proof, prove
from mulligan.upkeep.purge.search import FoundEvent, History, TreeHits
from mulligan.upkeep.purge.text import MIN_MATCH, Pattern, marker
from mulligan.upkeep.slices import Stop, Stopped, never
from mulligan.upkeep.space.grace import wait_grace_period
from mulligan.workspace.entries import from_name, shown
from mulligan.workspace.restore.plan import tree_path

MAX_ROUNDS = 8
"""How often it is searched again, because operations that were under way wrote it again."""

WAIT_SECONDS = 60.0
"""How long operations that are under way are waited for."""

MAX_REASON = 200
MIN_DIGITS = 8
"""How much of a digest must be given."""

MAX_PROOF_BYTES = 64 << 20
"""How many bytes of purged files are searched for; of more, the digests are proof enough."""


class PurgeTarget(msgspec.Struct, frozen=True):
    """What to purge: files at paths, objects by digest, or what a regular expression matches.

    With ``session``, only the history of that session is searched.
    """

    paths: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()
    match: str | None = None
    session: str | None = None


class FoundFile(msgspec.Struct, frozen=True):
    """A file that holds it: the session, the path, in how many trees, and the seqs of the first
    and the last. ``is_present`` says whether the file in the workspace holds it, too."""

    session: str
    path: str
    trees: int
    first: int
    last: int
    is_present: bool = False


class SharedContent(msgspec.Struct, frozen=True):
    """A file whose content stays, because a file at another path has it as well."""

    path: str
    other: str


class PurgePlan(msgspec.Struct, frozen=True):
    """What a purge would remove, and from where; it never holds the secret itself.

    ``values`` is the number of stored parts of states, and ``chunks`` that of parts of files.
    """

    events: tuple[FoundEvent, ...] = ()
    files: tuple[FoundFile, ...] = ()
    values: int = 0
    chunks: int = 0
    copies: int = 0
    shared: tuple[SharedContent, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything would be removed."""
        return bool(self.events or self.values or self.chunks or self.copies)


class Purged(msgspec.Struct, frozen=True):
    """What a purge did: its plan, its records, and the proof.

    ``unfinished`` says what could not be erased; the purge is then finished later. All tombstones
    are written in one transaction; ``longest_hold`` is how long it held the write lock, in seconds.
    """

    plan: PurgePlan
    purges: tuple[Purge, ...]
    proof: Proof
    unfinished: tuple[str, ...] = ()
    longest_hold: float = 0.0

    @property
    def is_proved(self) -> bool:
        """Whether it is proved that nothing is left."""
        return bool(self.proof) and not self.unfinished


def plan_purge(store: Store, target: PurgeTarget) -> PurgePlan:
    """Return what a purge would remove; nothing is changed."""
    engine = engine_of(store)
    with engine.pin():
        return _Search(engine, target).plan()


def run_purge(
    store: Store,
    target: PurgeTarget,
    *,
    by: str,
    reason: str = "",
    wait: float = WAIT_SECONDS,
) -> Purged:
    """Remove content from all history, erase its bytes, and prove that none is left.

    Raises ``UpkeepBusy`` if another process looks after the store. ``wait`` limits how long
    operations that are under way are waited for. Unfinished purges are finished as well.
    """
    engine = _writable(store)
    _check_words(by, reason)
    purge = Purge(0, engine.clock.now(), by, reason)
    with upkeep_lock(engine, wait=False):
        return _Purging(engine, target, purge, wait).run()


def finish_purges(store: Store, *, wait: float = WAIT_SECONDS) -> Purged:
    """Erase what unfinished purges left, and prove that nothing dead is left in the store.

    What was purged is not known any more; to search for it, run the same purge again.
    """
    engine = _writable(store)
    with upkeep_lock(engine, wait=False):
        return _finish(engine, PurgePlan(), (), (), wait)


def finish_if_unfinished(engine: Engine, stop: Stop) -> None:
    """Finish purges that were interrupted; the caller holds the upkeep lock, and no pin."""
    if unfinished_purges(engine):
        # Without asking other processes to leave: agents must not be held up by upkeep.
        _finish(engine, PurgePlan(), (), (), 0, stop=stop)


def unfinished_purges(engine: Engine) -> list[Purge]:
    """Return the purges of which bytes may be left in files of the store."""
    with engine.read() as view:
        return [purge for purge in view.purges() if purge.finished is None]


def _writable(store: Store) -> Engine:
    engine = engine_of(store)
    if engine.read_only:
        raise ReadOnlyStore(f"The store at {store.path} was opened for reading.")
    return engine


def _check_words(by: str, reason: str) -> None:
    for what, text in (("reason", reason), ("name", by)):
        if len(text) > MAX_REASON or not text.isprintable():
            raise PurgeRefused(
                f"The {what} must be one line of at most {MAX_REASON} printable characters."
            )


class _Search:
    """Everything that a target is found in."""

    def __init__(self, engine: Engine, target: PurgeTarget) -> None:
        self._engine = engine
        self._target = target
        self.pattern = None if target.match is None else Pattern(target.match, self._are_objects)
        self._number: int | None = None
        if target.session is not None:
            with engine.read() as view:
                self._number = known_session(view, target.session).number
        self.history = History(engine, self.pattern, self._is_wanted)
        self._paths = [tree_path(path) for path in target.paths]
        if not all(self._paths):
            raise PurgeRefused("A path names a file or a directory, from the top of the workspace.")
        self._digests = self._kinds(map(self._full_digest, target.digests))
        self._shared: tuple[SharedContent, ...] = ()
        self.chunks: set[Digest] = set()
        self.is_walked = False

    def _is_wanted(self, record: SessionRecord) -> bool:
        return self._number is None or record.number == self._number

    def _are_objects(self, data: bytes) -> bool:
        """Whether bytes are digests of objects that the store has, or had until a purge."""
        found = {Digest(data[at : at + DIGEST_SIZE]) for at in range(0, len(data), DIGEST_SIZE)}
        with self._engine.read() as view:
            return len(view.locate_all(found).keys() | view.tombstones(found).keys()) == len(found)

    def walk(self) -> None:
        """Search everything that is committed."""
        self.history.walk()
        self._settle()

    def catch_up(self, view: View) -> None:
        """Search what was committed since; ``view`` may be a write transaction."""
        # Trees are only walked again if there are new ones: writers may wait for this.
        if self.history.catch_up(view):
            self._settle()

    def _settle(self) -> None:
        self.is_walked = True
        history = self.history
        self.chunks = set() if history.contents is None else set(history.contents.chunks)
        self.chunks |= {d for d, kind in self._digests.items() if kind == ObjectKind.CHUNK}
        if self._paths:
            found = chunks_at(self._engine, history.trees, self._paths)
            self.chunks |= found.own.keys()
            names = ", ".join(map(shown, self._paths))
            others = sorted({shown(path) for path in found.others.values()})
            self._shared = tuple(SharedContent(names, other) for other in others)
        with self._engine.read() as view:
            # Others are purged already, or were files of a base tree that no checkpoint has.
            self.chunks &= view.locate_all(self.chunks).keys()

    @property
    def values(self) -> set[Digest]:
        """The values to replace, as a whole or in part."""
        return self.history.values | self.whole

    @property
    def whole(self) -> set[Digest]:
        """The values to replace as a whole."""
        found = {d for d, kind in self._digests.items() if kind == ObjectKind.VALUE}
        with self._engine.read() as view:
            return found - view.tombstones(found).keys()

    def plan(self) -> PurgePlan:
        """Return what was found."""
        if not self.is_walked:
            self.walk()
        return PurgePlan(
            events=tuple(self.history.events[at] for at in sorted(self.history.events)),
            files=tuple(self._files()),
            values=len(self.values),
            chunks=len(self.chunks),
            copies=len(self.history.copies),
            shared=self._shared,
        )

    def texts(self) -> set[bytes]:
        """Return what must not be left in any file."""
        found = set() if self.pattern is None else set(self.pattern.texts)
        if self._target.match is not None and re.escape(self._target.match) == self._target.match:
            found.add(self._target.match.encode())
        size = 0
        for kind, digests in ((ObjectKind.CHUNK, self.chunks), (ObjectKind.VALUE, self.whole)):
            if self.pattern is not None and kind == ObjectKind.CHUNK:
                continue
            for _, data in self._engine.objects.get_all(kind, digests):
                size += len(data)
                if size <= MAX_PROOF_BYTES and len(data) >= MIN_MATCH:
                    found.add(data)
        return found

    def _files(self) -> Iterator[FoundFile]:
        """Yield the files that were found, by session and path."""
        hits = TreeHits(self._engine, self.chunks)
        seqs: dict[tuple[str, str], list[int]] = {}
        places: dict[tuple[str, str], bytes] = {}
        for tree, holders in self.history.trees.items() if self.chunks else ():
            for path in hits.of(tree):
                for held in holders:
                    key = held.session, shown(path)
                    seqs.setdefault(key, []).append(held.seq)
                    places[key] = b"/".join(map(from_name, path))
        for key, found in sorted(seqs.items()):
            is_present = self._is_present(key[0], places[key])
            yield FoundFile(*key, len(set(found)), min(found), max(found), is_present)

    def _is_present(self, session: str, path: bytes) -> bool:
        """Whether the file of that name in the session's workspace holds it now."""
        root = self._root(session)
        if not root:
            return False
        file = os.path.join(os.fsencode(root), path)
        if self.pattern is None or os.path.islink(file):
            return os.path.isfile(file) and not os.path.islink(file)
        try:
            return self.pattern.is_in(Path(os.fsdecode(file)).read_bytes())
        except OSError:
            return False

    def _root(self, session: str) -> str:
        """Return the directory that a session last captured."""
        with self._engine.read() as view:
            record = known_session(view, session)
            newest = view.head(record.number).checkpoint
            if newest is None:
                return ""
            found = read_checkpoint(self._engine, event_at(view, record.number, newest[0]))
        return found.coverage.root if found.coverage else ""

    def _full_digest(self, digits: str) -> Digest:
        """Return the only digest that starts with some digits; it may be purged already."""
        text = digits.lower()
        if not re.fullmatch(f"[0-9a-f]{{{MIN_DIGITS},{2 * DIGEST_SIZE}}}", text):
            raise PurgeRefused(f"A digest is given by {MIN_DIGITS} to 64 hexadecimal digits.")
        with self._engine.read() as view:
            known = view.locations(_before(text))
            # The index is in order; it is read only up to what follows.
            index = takewhile(lambda one: one[0].hex()[: len(text)] <= text, known)
            found = {digest for digest, _ in index if digest.hex().startswith(text)}
            found |= {d for d, _ in view.buried_objects() if d.hex().startswith(text)}
        if len(found) != 1:
            many = "More than one object has" if found else "There is no object with"
            raise PurgeRefused(f"{many} a digest that starts with {text}.")
        return found.pop()

    def _kinds(self, digests: Iterable[Digest]) -> dict[Digest, int]:
        """Return objects that are not purged with their kinds."""
        wanted = set(digests)
        with self._engine.read() as view:
            wanted -= view.tombstones(wanted).keys()
        return {digest: self._kind(digest) for digest in wanted}

    def _kind(self, digest: Digest) -> int:
        try:
            self._engine.objects.get(ObjectKind.CHUNK, digest)
            return ObjectKind.CHUNK
        except DamageError:
            value = codec.decode(self._engine.load(digest))
        if not isinstance(value, str | bytes):
            raise PurgeRefused(
                f"Object {digest.hex()[:16]} is a part of a state or of a tree, and holds others.",
                hint="Nothing was changed. Purge a path, or use --match.",
            )
        return ObjectKind.VALUE


def _before(digits: str) -> Digest | None:
    """Return a digest before all that start with some digits; None for the first ones."""
    number = int(digits.ljust(2 * DIGEST_SIZE, "0"), 16)
    return Digest((number - 1).to_bytes(DIGEST_SIZE, "big")) if number else None


class _Purging:
    def __init__(self, engine: Engine, target: PurgeTarget, purge: Purge, wait: float) -> None:
        self._engine = engine
        self._target = target
        self._purge = purge
        self._wait = wait
        self._purges: list[Purge] = []
        self._texts: set[bytes] = set()
        self._plan = PurgePlan()
        self._longest_hold = 0.0

    def run(self) -> Purged:
        left: list[str] = []
        try:
            for _ in range(MAX_ROUNDS):
                if not self._round():
                    break
                # Operations that began earlier may have it in memory, and commit it.
                wait_grace_period(self._engine, never, self._wait)
            else:
                left.append("new events: something keeps writing it")
        except Stopped:
            left.append(STOPPED)
        done = _finish(self._engine, self._plan, tuple(self._purges), self._texts, self._wait, left)
        return msgspec.structs.replace(done, longest_hold=self._longest_hold)

    def _round(self) -> bool:
        """Search and bury; return whether there was anything."""
        with self._engine.pin():
            search = _Search(self._engine, self._target)
            if search.pattern is not None:
                search.pattern.check(self._purge)
            plan = search.plan()
            self._texts |= search.texts()
            if not self._purges:
                self._plan = plan
            if plan:
                self._bury(search)
            return bool(plan)

    def _bury(self, search: _Search) -> None:
        if self._engine.directory is not None:
            # Before the first tombstone: an older version must not take it for damage.
            add_feature(self._engine.directory, TOMBSTONES)
            self._engine.failpoint(Failpoint.PURGE_ANNOUNCED)
        mark = marker(self._purge)
        replace = search.pattern.replaced(mark) if search.pattern else lambda data: data
        burial = Burial(self._engine, replace, dict.fromkeys(search.whole, mark))
        # Most of it before the transaction, because writers wait for that.
        with self._engine.read() as view:
            search.catch_up(view)
            burial.prepare_events(view, sorted(search.history.events))
        burial.prepare(search.values, search.chunks)

        def catch_up(txn: Txn) -> tuple[set[Digest], set[Digest]]:
            search.catch_up(txn)
            return search.values, search.chunks

        history = search.history
        done = burial.commit(
            self._purge, catch_up, lambda: sorted(history.events), lambda: history.copies
        )
        self._purges.append(done)
        self._longest_hold = max(self._longest_hold, burial.hold.longest)
        self._texts |= search.texts()


def _finish(
    engine: Engine,
    plan: PurgePlan,
    purges: Sequence[Purge],
    texts: Iterable[bytes],
    wait: float,
    left: Sequence[str] = (),
    stop: Stop = never,
) -> Purged:
    """Erase and prove; record the purges as finished if nothing is left."""
    open_ = unfinished_purges(engine)
    unfinished = [*left, *(erase(engine, wait, stop) if open_ else ())]
    proof = prove(engine, texts)
    if not proof and not open_:
        # Other dead bytes are in the way, such as those that a repair has left behind.
        unfinished += erase(engine, wait, stop)
        proof = prove(engine, texts)
    if open_ and proof and not unfinished:
        with engine.write() as txn:
            for purge in open_:
                txn.put_purge(msgspec.structs.replace(purge, finished=engine.clock.now()))
        engine.failpoint(Failpoint.PURGE_FINISHED)
    return Purged(plan, tuple(purges), proof, tuple(dict.fromkeys(unfinished)))
