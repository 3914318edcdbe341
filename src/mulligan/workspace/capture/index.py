"""The index: the state of every path at its last capture, so that a scan reads only changes."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
from blake3 import blake3
from msgspec import Raw

from mulligan import codec
from mulligan.codec import MapBranch, Ref
from mulligan.decoding import ready
from mulligan.document.document import LoadBytes
from mulligan.document.nodes import references
from mulligan.model import Digest, LeftOut
from mulligan.owner import open_as_owner
from mulligan.workspace.entries import FILE, file_chunks

VERSION = 10

HEAD = struct.Struct(">8sIQ32s")
"""Header of a saved index: magic, version, length of the body, and a BLAKE3 digest.

The digest covers the magic, the version, the length and the body: every bit of the file. The parts
have no digests of their own, because an index with any error is not used at all.
"""

_WORD = b"MULLINDX"
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

TIMESTAMP_GRAIN_NS = 20_000_000
"""Nanoseconds within which a file may change twice without its times showing it."""

COARSE_TIMESTAMP_GRAIN_NS = 2_000_000_000
"""The same for filesystems that store whole seconds only."""

SETTLED_AFTER_NS = 120_000_000_000
"""Nanoseconds after which every write through a mapping shows in a file's times."""

STAT = struct.Struct(">qqQQ")
"""Ctime, mtime, size and inode of a leaf; packed this way, later ctimes sort higher."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def packed_stat(status: os.stat_result) -> bytes:
    """Return the fields of a stat that change whenever a leaf does."""
    fields = status.st_ctime_ns, status.st_mtime_ns, status.st_size, status.st_ino
    try:
        return STAT.pack(*fields)
    except struct.error:  # a time beyond the year 2262
        return unsettled_stat(status)


def unsettled_stat(status: os.stat_result) -> bytes:
    """Return a stat as text, which sorts after all others, so that the leaf is read again."""
    fields = status.st_ctime_ns, status.st_mtime_ns, status.st_size, status.st_ino
    text = b"\xff" + b" ".join(b"%d" % field for field in fields)
    return text if len(text) != STAT.size else text + b" "


class Seen(msgspec.Struct, gc=False, array_like=True):
    """A file or symlink as last captured: its packed stat, and its entry as a tree holds it.

    ``room`` is the number of bytes it uses of the budget. There may be very many of these, and they
    are compared far more often than unpacked, so the stat is one byte string.
    """

    stat: bytes
    room: int
    entry: bytes

    @property
    def is_unsettled(self) -> bool:
        """Whether the leaf must be read again, whatever its stat."""
        return len(self.stat) != STAT.size

    @property
    def ctime(self) -> int:
        """When the leaf last changed in any way, in nanoseconds."""
        return self._fields()[0]

    @property
    def mtime(self) -> int:
        """When its content last changed, in nanoseconds."""
        return self._fields()[1]

    @property
    def size(self) -> int:
        """Its length in bytes."""
        return self._fields()[2]

    @property
    def ino(self) -> int:
        """Its inode number."""
        return self._fields()[3]

    def _fields(self) -> tuple[int, ...]:
        if len(self.stat) == STAT.size:
            return STAT.unpack(self.stat)
        return tuple(map(int, self.stat[1:].split()))


class SeenDirectory(msgspec.Struct, gc=False, array_like=True):
    """A directory as last captured, with the names in it.

    ``entry`` is its own entry and ``reference`` represents it in its parent, both as a tree holds
    them; a scan leaves them empty. No field has a type that the garbage collector tracks (a set
    would), so a large index does not slow down the rest of the program.
    """

    ino: int
    ctime: int
    mtime: int
    mode: int
    leaves: dict[bytes, Seen]
    directories: dict[bytes, None]
    left_out: dict[bytes, str]
    entry: bytes = b""
    reference: bytes = b""

    def invalidate(self) -> None:
        """Have the directory listed by the next capture, whatever its times say.

        A name may be missing only because a parent directory was moved for a moment. Once it is
        back, nothing here shows that it was gone.
        """
        self.ctime = 0


class Kept(NamedTuple):
    """A large directory as last put into a tree: its node, and each of its slots encoded."""

    node: MapBranch
    slots: list[Raw | None]


Nodes = dict[bytes, Kept]
"""Some of the large directories, by path."""


class Edits(msgspec.Struct, array_like=True):
    """What changed since ``base``, a tree that was stored in full.

    See ``mulligan.workspace.capture.edits``. ``origins`` and ``now`` map paths, in the form that
    patches use, to encoded entries, None where there is none: as in the base, and as now where that
    differs. ``touched`` are the names that changed, by directory.
    """

    base: Digest
    origins: dict[str, bytes | None] = {}
    now: dict[str, bytes | None] = {}
    touched: dict[bytes, set[bytes]] = {}


class Index(msgspec.Struct, array_like=True):
    """All directories of a workspace by their path from its root, which is ``b""``.

    ``taken`` is the filesystem's time when the scan began: anything that changed within the clock's
    grain of it, or later, is read again. ``tree`` is the tree that all this belongs to; ``files``
    and ``size`` count its files and bytes; ``left_out`` is what it lacks, by directory. ``edits``
    are its differences from the last tree that was stored in full. ``nodes`` are large directories
    as put into that tree, and ``listed`` is everything left out, sorted; neither is saved.
    ``mapped`` are the files that programs had mapped when they were read; see
    ``mulligan.workspace.watch.mapped``. ``damage`` is how often damage had been noted in the store:
    what is noted later may concern any file. ``collections`` is how many garbage collections the
    store had had: a later one may have removed a part of what the index refers to.
    """

    version: int
    root: str
    rules: str
    taken: int
    tree: Digest
    directories: dict[bytes, SeenDirectory]
    files: int
    size: int
    left_out: dict[bytes, list[LeftOut]]
    edits: Edits
    nodes: Nodes = {}
    mapped: dict[bytes, None] = {}
    listed: list[LeftOut] | None = None
    damage: int = 0
    collections: int = 0

    @property
    def fresh_from(self) -> int:
        """From this time on, a second change may have left the times as they were."""
        coarse = all(d.ctime % 1_000_000_000 == 0 for d in self.directories.values())
        return self.taken - (COARSE_TIMESTAMP_GRAIN_NS if coarse else TIMESTAMP_GRAIN_NS)

    @property
    def settled_until(self) -> int:
        """Before this time, the times of a file show every change to it."""
        return min(self.taken - SETTLED_AFTER_NS, self.fresh_from)

    def leaf(self, path: bytes) -> Seen | None:
        """Return what is known of a file or symlink, or None if there was none."""
        parent, _, name = path.rpartition(b"/")
        holder = self.directories.get(parent)
        return holder.leaves.get(name) if holder else None

    def invalidate(self, paths: Iterable[bytes]) -> None:
        """Have files read by the next capture, whatever their times say."""
        for path in paths:
            if (seen := self.leaf(path)) is not None:
                seen.stat = STAT.pack(0, 0, seen.size, seen.ino)


class Synced(NamedTuple):
    """What a restore has made durable: files that last changed before ``until``.

    They are in the directories with these inode numbers.
    """

    until: int
    directories: frozenset[int]


NOTHING_SYNCED = Synced(0, frozenset())


def stored_objects(index: Index, load: LoadBytes) -> Iterator[Digest]:
    """Yield the objects that an index refers to: its trees, all that is in them, and all chunks."""
    pending, found = [index.tree, index.edits.base], set[Digest]()
    while pending:
        if (digest := pending.pop()) not in found:
            found.add(digest)
            pending += references(codec.decode(load(digest)))
    yield from found
    for directory in index.directories.values():
        for seen in directory.leaves.values():
            entry = codec.decode(seen.entry)
            if isinstance(entry, Ref):
                entry = codec.decode(load(entry.digest))
            if entry[0] == FILE:
                yield from file_chunks(load, entry[4])


class _Saved(msgspec.Struct, array_like=True):
    """An index in a file, with the boot ID for which it is valid.

    After a power failure, a file may have lost written bytes and still show their times.
    """

    boot: str
    index: Index


def load_index(file: Path, root: Path) -> Index | None:
    """Return the saved index of a workspace, or None if there is none that is usable.

    It is used as a whole or not at all: one wrong digest would become part of a checkpoint that
    cannot be restored.
    """
    boot = _boot()
    try:
        body = _checked(file)
        saved = None if body is None else msgspec.msgpack.decode(body, type=ready(_Saved))
    except (OSError, ValueError):  # msgspec raises subclasses of ValueError
        return None
    # After a reboot the times prove nothing: a power cut may have lost bytes written before it.
    if saved is None or not boot or saved.boot != boot:
        return None
    found = saved.index
    return found if found.version == VERSION and found.root == root_text(root) else None


def _checked(file: Path) -> bytes | None:
    """Return the body of a saved index, or None if it is not what was written."""
    with os.fdopen(os.open(file, _OPEN), "rb", buffering=0) as stream:
        status = os.fstat(stream.fileno())
        head = stream.read(HEAD.size) if stat.S_ISREG(status.st_mode) else b""
        if len(head) != HEAD.size:
            return None
        word, version, length, _ = HEAD.unpack(head)
        # Check the length before reading: a damaged header must not decide how much is read.
        if (word, version, length) != (_WORD, VERSION, status.st_size - HEAD.size):
            return None
        body = stream.readall()
    return body if head == _head(body) else None


def _head(body: bytes) -> bytes:
    start = HEAD.pack(_WORD, VERSION, len(body), b"")[: -blake3.digest_size]
    return start + blake3(start).update(body).digest()


def root_text(root: Path) -> str:
    """Return a workspace's path as storable text, whatever its bytes are."""
    return os.fsencode(root).decode("utf-8", "backslashreplace")


def save_index(index: Index, file: Path) -> None:
    """Save an index under a temporary name and rename it into place; errors are ignored.

    It is a cache: it need not be synced, and nothing fails without it.
    """
    boot, index = _boot(), msgspec.structs.replace(index, nodes={}, listed=None)
    temporary = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        if boot:
            body = msgspec.msgpack.encode(_Saved(boot, index))
            _write(temporary, _head(body), body)
            # Renamed into place, so that a reader sees the old index or the new one, never a part.
            temporary.replace(file)
    except OSError:
        with suppress(OSError):
            # An index only saves time: without it, the next process reads all files again.
            temporary.unlink()


def _write(file: Path, *parts: bytes) -> None:
    handle = open_as_owner(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
    with os.fdopen(handle, "wb") as stream:
        stream.writelines(parts)


def _boot() -> str:
    """Return the boot ID, or an empty string if the system has none."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""
