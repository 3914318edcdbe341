"""Repairing a store whose files are damaged: FORMAT, the journal, the index of objects.

No process has the store open meanwhile. Everything is rebuilt from the two truths: the events, from
whatever pages of the journal are readable and from the copies of them in the packs, and the
objects, from the packs. The damaged originals are kept in ``damaged/`` until they are discarded.
Each step leaves a store that can be repaired again: the files that are kept aside come first, and
one rename puts the rebuilt journal in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cached_property
from pathlib import Path

import msgspec

from mulligan import layout
from mulligan.codec import FORMAT_VERSION
from mulligan.errors import (
    DamagedJournal,
    DamagedObject,
    DiskFull,
    MissingObject,
    NotAStore,
    ReadOnlyStore,
    StoreNotFound,
    UnknownFormat,
)
from mulligan.failpoints import Failpoint, FailpointHook, ignore
from mulligan.journal.copies import copied_records
from mulligan.journal.found_records import DERIVED
from mulligan.journal.lmdb.clean_close import DATA
from mulligan.journal.lmdb.lockfile import LockFile
from mulligan.journal.lmdb.replace import (
    RebuiltJournal,
    damage_of,
    is_older_copy,
    locked,
    remove_rebuilt,
)
from mulligan.journal.lmdb.salvage import read_records
from mulligan.journal.protocol import ALL_TABLES
from mulligan.journal.rebuild import Rebuilt, rebuild
from mulligan.journal.rebuild_chain import LostEvent
from mulligan.journal.records import (
    CHECKSUM_SIZE,
    COLLECTION,
    DAMAGE,
    FORGOTTEN,
    LENGTH,
    LOCATION,
    NUMBER,
    STORE,
    RawRecord,
    checksum,
    decode,
    decode_copy,
    encode,
)
from mulligan.model import (
    DIGEST_SIZE,
    ID_SIZE,
    Collection,
    Digest,
    Location,
    ObjectKind,
)
from mulligan.objects.frames import PACK_HEADER_SIZE, pack_name
from mulligan.objects.rescue import (
    DamagedStretch,
    IntactObject,
    RescuedObjects,
    RescuedPack,
    likely_store_id,
    own_packs,
    read_object,
    read_pieces,
    read_stretch,
    rescue_pack,
    rewrite_header,
    write_pack,
)
from mulligan.owner import make_directory
from mulligan.repair.ends import may_be_lost
from mulligan.repair.originals import Originals

Progress = Callable[[str], None]


_LATER_FORMAT = (
    "Nothing was changed. If no later version of Mulligan has used this store, its FORMAT is "
    "damaged: delete that file, and repair it again."
)


class RepairStep(msgspec.Struct, frozen=True):
    """One thing that a repair found, and what it did about it."""

    what: str
    found: str
    done: str


class RepairedFiles(msgspec.Struct, frozen=True):
    """What was found wrong with the files of a store, what was done, and what is gone.

    ``lost_events`` is in words, and so is ``may_be_lost``, of which nothing is left that would say
    whether it existed; ``aside`` is where the damaged originals are, if there are any.
    """

    steps: tuple[RepairStep, ...]
    lost_events: tuple[str, ...] = ()
    may_be_lost: tuple[str, ...] = ()
    aside: str | None = None


def repair_files(
    directory: Path,
    now: datetime,
    *,
    failpoint: FailpointHook = ignore,
    progress: Progress = lambda _: None,
) -> RepairedFiles:
    """Make a store's files consistent again; raises ``StoreInUse`` if a process has it open."""
    if not directory.is_dir():
        raise StoreNotFound(f"There is no store at {directory}.")
    with _translated(directory):
        for part in layout.PARTS:
            make_directory(directory / part)
        return _Repair(directory, now, failpoint, progress).run()


@contextmanager
def _translated(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        found = layout.translation(error, directory)
        if isinstance(found, ReadOnlyStore):
            raise ReadOnlyStore(f"The store at {directory} cannot be written.") from error
        if isinstance(found, DiskFull):
            raise DiskFull(
                f"There is no space left to repair {directory}.",
                hint="The store is as it was, or as the last finished step left it. Make room, "
                "then repair it again.",
            ) from error
        raise


_Tables = dict[str, dict[bytes, bytes]]


class _Found(msgspec.Struct):
    """What the packs hold, and the records of the journal that lead to it.

    ``contents`` are intact objects of damaged frames; ``headers`` are packs with a damaged one.
    """

    objects: dict[bytes, bytes]
    packs: dict[bytes, bytes]
    steps: list[tuple[str, str]]
    damage: list[DamagedStretch]
    contents: RescuedObjects
    headers: list[int]


class _Repair:
    def __init__(
        self,
        directory: Path,
        now: datetime,
        failpoint: FailpointHook,
        progress: Progress,
    ) -> None:
        self._directory = directory
        self._journal = directory / "journal"
        self._packs = directory / "packs"
        self._failpoint = failpoint
        self._progress = progress
        self._originals = Originals(directory, now)
        self._steps: list[RepairStep] = []

    def run(self) -> RepairedFiles:
        # From here to the end: no process may write to what is read here.
        with locked(self._journal) as lock:
            remove_rebuilt(self._journal)
            self._progress("journal")
            index, raw = _divided(read_records(self._journal / DATA))
            store_id = self._store_id(raw)
            format_ = self._format(store_id)
            packs = _Packs(self._packs, store_id, index, raw, self._progress)
            found, rebuilt, tables = self._rebuilt(packs, raw, store_id, is_sound=True)
            is_sound = index == found.objects and not self._damage(raw, rebuilt, tables)
            if not is_sound:
                # What the journal does not know may be what it has lost.
                found, rebuilt, tables = self._rebuilt(packs, raw, store_id, is_sound=False)
            if format_ is not None:
                format_ = _with_tombstones(format_, tables)
            self._steps += [RepairStep("pack", *step) for step in found.steps]
            self._note(raw, rebuilt, tables)
            # Before the rebuilt journal takes the place of the damaged one.
            unknown = tuple(may_be_lost(self._journal, rebuilt))
            wrong = sum(1 for digest, place in index.items() if found.objects.get(digest) != place)
            if wrong or index.keys() != found.objects.keys():
                led = f"index of objects: {wrong} of {len(index)} entries led to nothing intact"
                self._step("journal", led, f"it has {len(found.objects)} entries now")
            self._apply(lock, store_id, format_, found, None if is_sound else tables)
        aside = None if self._originals.is_empty else str(self._originals.directory)
        return RepairedFiles(tuple(self._steps), tuple(_lost(rebuilt)), unknown, aside)

    def _rebuilt(
        self, packs: _Packs, raw: list[RawRecord], store_id: bytes, *, is_sound: bool
    ) -> tuple[_Found, Rebuilt, _Tables]:
        found = packs.found(is_sound=is_sound)
        rebuilt = rebuild([*raw, *packs.copies], store_id, packs.load)
        tables = {name: dict(rebuilt.tables[name]) for name in DERIVED}
        # A purge may be unfinished: its bytes are in the packs, and must stay out of the index.
        for digest in tables["purged"].keys() & found.objects.keys():
            del found.objects[digest]
        found.contents = [one for one in found.contents if one[1] not in tables["purged"]]
        known = found.objects.keys() | {digest for _, digest, _ in found.contents}
        copies = tables["copies"]
        for key in [
            k for k, v in copies.items() if decode_copy(v[:-CHECKSUM_SIZE])[1] not in known
        ]:
            del copies[key]
        return found, rebuilt, tables | {"objects": found.objects, "packs": found.packs}

    def _step(self, what: str, found: str, done: str) -> None:
        self._steps.append(RepairStep(what, found, done))

    def _apply(
        self,
        lock: LockFile,
        store_id: bytes,
        format_: layout.Format | None,
        found: _Found,
        tables: _Tables | None,
    ) -> None:
        """Write what was found out; the originals are kept first."""
        try:
            journal = self._written(store_id, format_, found, tables)
        except BaseException:
            # The packs still have these bytes, and the next attempt keeps them again.
            self._originals.drop_stretches()
            raise
        if journal is None:
            return
        try:
            # The damaged file keeps a name among the originals: a better tool may read more of it
            # one day.
            journal.put_in_place(lock, self._originals.path(f"journal/{DATA}"))
        finally:
            journal.discard()

    def _written(
        self,
        store_id: bytes,
        format_: layout.Format | None,
        found: _Found,
        tables: _Tables | None,
    ) -> RebuiltJournal | None:
        """Write everything but the journal in its place; return the rebuilt one, if there is."""
        if tables is not None:
            self._keep(found)
        if format_ is not None:
            self._originals.keep(layout.FORMAT)
            layout.replace_format(self._directory, format_)
            self._failpoint(Failpoint.REPAIR_FORMAT_WRITTEN)
        for number in found.headers:
            self._originals.keep_bytes(f"packs/{pack_name(number)}-0", _header(self._packs, number))
            rewrite_header(self._packs, number, store_id)
            self._failpoint(Failpoint.REPAIR_HEADER_WRITTEN)
        if tables is None:
            return None
        self._store_again(found, store_id, tables)
        _end_collection(tables["meta"])
        journal = RebuiltJournal(self._journal, self._failpoint)
        try:
            journal.write({name: table.items() for name, table in tables.items()})
        except BaseException:
            journal.discard()
            raise
        return journal

    def _keep(self, found: _Found) -> None:
        for stretch in found.damage:
            name = f"packs/{pack_name(stretch.pack)}-{stretch.offset}"
            pieces = read_pieces(self._packs, stretch)
            self._originals.keep_stretch(name, stretch.length, pieces)
        if found.damage:
            self._failpoint(Failpoint.REPAIR_ASIDE_KEPT)

    def _store_again(self, found: _Found, store_id: bytes, tables: _Tables) -> None:
        """Store intact objects of damaged frames in a pack of their own."""
        contents = [one for one in found.contents if one[1] not in tables["objects"]]
        if not contents:
            return
        forgotten = tables["meta"].get(FORGOTTEN)
        last = NUMBER.unpack(forgotten[:-CHECKSUM_SIZE])[0] if forgotten else 0
        number = write_pack(self._packs, store_id, contents, last)
        self._failpoint(Failpoint.REPAIR_PACK_WRITTEN)
        rescued = rescue_pack(self._packs, number, store_id)
        for one in rescued.objects:
            tables["objects"][one.digest] = _place(one.location)
        _put(tables["packs"], "packs", NUMBER.pack(number), LENGTH.pack(rescued.end))

    def _store_id(self, raw: Iterable[RawRecord]) -> bytes:
        """Return the id of the store: that of its journal, or of most packs, or of FORMAT."""
        journal = next(filter(None, map(_id_in, raw)), None)
        packs = likely_store_id(self._packs)
        digits = layout.id_in_format(self._directory)
        named = None if digits is None else bytes.fromhex(digits)
        if journal is not None and packs == named != journal and packs is not None:
            raise DamagedJournal(
                "The journal does not belong to this store.",
                hint="Nothing was changed. Put the journal back from a copy of the store, or move "
                "it away: `mulligan verify --repair` then rebuilds it from the packs.",
            )
        found = journal or packs or named
        if found is None:
            raise NotAStore(
                f"Nothing in {self._directory} says which store it is.",
                hint="Nothing was changed. Put FORMAT or journal/ back from a copy of the store.",
            )
        return found

    def _format(self, store_id: bytes) -> layout.Format | None:
        """Return the FORMAT to write if the present one is damaged; None if it is sound."""
        try:
            present = layout.read_format(self._directory)
            if bytes.fromhex(present.id) == store_id:
                return None
            damage = "it names another store"
            features = present.features
        except (NotAStore, UnknownFormat) as error:
            if not layout.is_damaged_format(self._directory, store_id.hex()):
                raise type(error)(str(error), hint=_LATER_FORMAT) from error
            damage, features = str(error), list(layout.FEATURES)
        self._step("format", damage, f"written again, with the store's id {store_id.hex()}")
        return layout.Format(FORMAT_VERSION, store_id.hex(), features)

    def _damage(self, raw: list[RawRecord], rebuilt: Rebuilt, tables: _Tables) -> bool:
        """Whether the journal is not what its records and the packs lead to."""
        if damage_of(self._journal) or is_older_copy(self._journal):
            return True
        return _records(tables) != _present(raw) or bool(rebuilt.lost or rebuilt.mended)

    def _note(self, raw: list[RawRecord], rebuilt: Rebuilt, tables: _Tables) -> None:
        """Note what is wrong with the journal, and what was made of it."""
        damage = damage_of(self._journal)
        for name, detail in damage.items():
            self._step("journal", f"{name}: {detail}", "rebuilt from all that is readable")
        if DATA in damage or ALL_TABLES in damage:
            return  # all of it is rebuilt
        if is_older_copy(self._journal):
            self._step("journal", "it is an older copy", "newer events come from the packs")
        present = _present(raw)
        for name in sorted(tables.keys() - {"objects"}):
            wrong = sum(1 for record in tables[name].items() if record not in present)
            if wrong:
                records = f"{wrong} of {len(tables[name])} records"
                self._step("journal", f"table {name!r}: {records} were wrong or gone", "rebuilt")
        if wrong := len(present - _records(tables)):
            said = "a record was wrong" if wrong == 1 else f"{wrong} records were wrong"
            self._step("journal", said, "removed")
        for session, seq in rebuilt.mended:
            self._step("journal", f"event #{seq} of session {session!r} was damaged", "mended")
        for session, seq in rebuilt.unproven:
            where = f"event #{seq} of session {session!r}"
            self._step("journal", f"{where}: the one before it is lost", "kept, without a proof")
        for line in rebuilt.assumed:
            self._step("journal", line, "assumed")


class _Packs:
    """Everything that is intact in the packs, read once."""

    def __init__(
        self,
        directory: Path,
        store_id: bytes,
        index: dict[bytes, bytes],
        raw: list[RawRecord],
        progress: Progress,
    ) -> None:
        self._directory = directory
        self._index = index
        self._lengths = _lengths(raw)
        self._packs: list[RescuedPack] = []
        for number in own_packs(directory, store_id, set(self._lengths)):
            progress(pack_name(number))
            self._packs.append(rescue_pack(directory, number, store_id))
        self.copies = list(self._copied())

    def _copied(self) -> Iterator[RawRecord]:
        """Yield the records in all copies of events."""
        for pack in self._packs:
            data = [read_object(self._directory, o) for o in pack.objects if _is_copy(o.kind)]
            data += [content for kind, _, content in pack.contents if _is_copy(kind)]
            for copy in data:
                with suppress(DamagedObject):  # of a later version
                    yield from copied_records(copy)

    @cached_property
    def _intact(self) -> dict[bytes, IntactObject]:
        return {one.digest: one for pack in self._packs for one in pack.objects}

    def load(self, digest: Digest) -> bytes:
        """Return the bytes of a value; raises ``MissingObject``."""
        if (one := self._intact.get(digest)) is not None:
            return read_object(self._directory, one)
        for pack in self._packs:
            for _, other, content in pack.contents:
                if other == digest:
                    return content
        raise MissingObject(f"Object {digest.hex()} is not in the store.")

    def found(self, *, is_sound: bool) -> _Found:
        """Return the index that leads to everything intact.

        If the journal is sound, it knows what is in use; otherwise everything may be.
        """
        found = _Found({}, {}, [], [], [], [])
        moved: dict[bytes, bytes] = {}
        for pack in self._packs:
            self._add(pack, found, is_sound=is_sound)
            for one in pack.objects:
                place = _place(one.location)
                if self._index.get(one.digest) == place:
                    found.objects[one.digest] = place
                else:
                    moved.setdefault(one.digest, place)
        lost = self._index.keys() - found.objects.keys()
        for digest, place in moved.items():
            if digest in lost or not is_sound:
                found.objects.setdefault(digest, place)
        self._add_damage(found, lost)
        for number in self._lengths.keys() - {pack.number for pack in self._packs}:
            found.steps.append((f"{pack_name(number)}: it is missing", "it left the index"))
        return found

    def _add(self, pack: RescuedPack, found: _Found, *, is_sound: bool) -> None:
        name, acknowledged = pack_name(pack.number), self._lengths.get(pack.number, 0)
        if not acknowledged and (is_sound or not (pack.objects or pack.contents)):
            return  # its creator was killed, or it was removed and its file is about to go
        if pack.is_header_damaged:
            found.steps.append((f"{name}: its header is damaged", "written again"))
            found.headers.append(pack.number)
        if pack.size < acknowledged:
            missing = acknowledged - pack.size
            found.steps.append((f"{name}: its last {missing} bytes are missing", "it ends there"))
        # Not what is left of a frame that was cut: with frames behind it, it would look whole.
        end = acknowledged if pack.size >= acknowledged else pack.end
        if not is_sound:
            end = max(end, pack.end)
        _put(found.packs, "packs", NUMBER.pack(pack.number), LENGTH.pack(end))
        found.damage += pack.damage
        found.contents += pack.contents

    def _add_damage(self, found: _Found, lost: Set[bytes]) -> None:
        """Note damage; stretches to which no entry leads are free, and what is there is none."""
        starts = {LOCATION.unpack(self._index[digest])[:2] for digest in lost}
        if self._index:
            found.damage = [one for one in found.damage if _is_used(one, starts)]
        for one in found.damage:
            where = f"{pack_name(one.pack)} at offset {one.offset}: {one.detail}"
            found.steps.append((where, f"its {one.length} bytes were kept aside"))


def _with_tombstones(format_: layout.Format, tables: _Tables) -> layout.Format:
    """Return a FORMAT that lists the feature of stores from which something was purged."""
    if not tables["purges"] or layout.TOMBSTONES in format_.features:
        return format_
    return msgspec.structs.replace(format_, features=[*format_.features, layout.TOMBSTONES])


def _is_copy(kind: int) -> bool:
    return kind == ObjectKind.EVENTS


def _id_in(record: RawRecord) -> bytes | None:
    """Return the store's id if a record has it."""
    content = record.value[:-CHECKSUM_SIZE]
    is_id = record.key == STORE and len(content) == ID_SIZE
    if is_id and record.value[-CHECKSUM_SIZE:] == checksum("meta", STORE, content):
        return content
    return None


def _divided(records: Iterable[RawRecord]) -> tuple[dict[bytes, bytes], list[RawRecord]]:
    """Return the index of objects, which is by far the largest table, and all other records."""
    index: dict[bytes, bytes] = {}
    raw: list[RawRecord] = []
    for record in records:
        if not _is_location(record):
            raw.append(record)
        elif record.is_current:
            index[record.key] = record.value
    return index, raw


def _records(tables: _Tables) -> set[tuple[bytes, bytes]]:
    """Return the records of all tables but the index of objects."""
    rest = (table for name, table in tables.items() if name != "objects")
    return {record for table in rest for record in table.items()}


def _present(raw: Iterable[RawRecord]) -> set[tuple[bytes, bytes]]:
    """Return the records of the journal, but for the lists of a garbage collection."""
    return {
        (record.key, record.value)
        for record in raw
        if record.is_current and (record.value or len(record.key) != DIGEST_SIZE)
    }


def _is_location(record: RawRecord) -> bool:
    return len(record.key) == DIGEST_SIZE and len(record.value) == LOCATION.size


def _lengths(raw: Iterable[RawRecord]) -> dict[int, int]:
    """Return the acknowledged lengths that the journal knows, the newest of each pack."""
    found: dict[int, int] = {}
    for record in raw:
        content = record.value[:-CHECKSUM_SIZE]
        if len(record.key) != NUMBER.size or len(content) != LENGTH.size:
            continue
        is_right = record.value[-CHECKSUM_SIZE:] == checksum("packs", record.key, content)
        if is_right and record.is_current:
            found[NUMBER.unpack(record.key)[0]] = LENGTH.unpack(content)[0]
    return found


def _is_used(stretch: DamagedStretch, starts: set[tuple[int, int]]) -> bool:
    end = stretch.offset + stretch.length
    return any(pack == stretch.pack and stretch.offset <= at < end for pack, at in starts)


def _place(location: Location) -> bytes:
    return LOCATION.pack(location.area, location.offset, location.length, location.slot)


def _put(table: dict[bytes, bytes], name: str, key: bytes, content: bytes) -> None:
    table[key] = content + checksum(name, key, content)


def _end_collection(meta: dict[bytes, bytes]) -> None:
    """End a garbage collection; what was looked up before it no longer counts."""
    found = meta.get(COLLECTION)
    count = decode(found[:-CHECKSUM_SIZE], Collection, "meta").count if found else 0
    _put(meta, "meta", COLLECTION, encode(Collection(count + 1)))
    noted = meta.get(DAMAGE)
    times = LENGTH.unpack(noted[:-CHECKSUM_SIZE])[0] if noted else 0
    # Captures read every file again: what they know to be stored may be lost.
    _put(meta, "meta", DAMAGE, LENGTH.pack(times + 1))


def _header(packs: Path, number: int) -> bytes:
    return read_stretch(packs, DamagedStretch(number, 0, PACK_HEADER_SIZE, ""))


def _lost(rebuilt: Rebuilt) -> Iterator[str]:
    """Yield the lost events in words, those in a row together."""
    rows: list[list[LostEvent]] = []
    for lost in rebuilt.lost:
        is_next = rows and rows[-1][-1].session == lost.session
        if is_next and rows[-1][-1].seq == lost.seq - 1:
            rows[-1].append(lost)
        else:
            rows.append([lost])
    for row in rows:
        first, last = row[0].seq, row[-1].seq
        events = f"event #{first}" if first == last else f"events #{first} to #{last}"
        yield f"{events} of session {row[0].session!r}"
        for lost in row:
            if lost.checkpoint is not None:
                named = f" ({lost.label})" if lost.label else ""
                yield f"checkpoint {lost.checkpoint[:12]}{named} at #{lost.seq}, with its event"
