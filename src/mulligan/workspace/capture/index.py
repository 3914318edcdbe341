"""The index: how every path looked when it was last captured, so that a scan reads only changes."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
from blake3 import blake3
from msgspec import Raw

from mulligan.codec import MapBranch
from mulligan.model import Digest, LeftOut

VERSION = 9

HEAD = struct.Struct(">8sIQ32s")
"""How a saved index begins: a word, the version, the length of the rest, and a BLAKE3 digest.

The digest covers the word, the version, the length and the rest: every bit of the file. Parts have
none of their own, because an index that is wrong anywhere is not used at all.
"""

_WORD = b"MULLINDX"
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

TIMESTAMP_GRAIN_NS = 20_000_000
"""Nanoseconds within which a file may change twice without its times showing it."""

COARSE_TIMESTAMP_GRAIN_NS = 2_000_000_000
"""The same on filesystems that keep no parts of seconds."""

SETTLED_AFTER_NS = 120_000_000_000
"""Nanoseconds after which all bytes that were written through memory show in a file's times."""

STAT = struct.Struct(">qqQQ")
"""Ctime, mtime, size and inode of a leaf; so packed, later ctimes are larger bytes."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def packed_stat(status: os.stat_result) -> bytes:
    """Return what changes in a stat whenever a leaf does."""
    fields = status.st_ctime_ns, status.st_mtime_ns, status.st_size, status.st_ino
    try:
        return STAT.pack(*fields)
    except struct.error:  # a time beyond the year 2262
        return doubtful_stat(status)


def doubtful_stat(status: os.stat_result) -> bytes:
    """Return a stat as text, which is later than all others: the leaf is read at the next look."""
    fields = status.st_ctime_ns, status.st_mtime_ns, status.st_size, status.st_ino
    text = b"\xff" + b" ".join(b"%d" % field for field in fields)
    return text if len(text) != STAT.size else text + b" "


class Seen(msgspec.Struct, gc=False, array_like=True):
    """A file or symlink as last captured: what its stat said, and its entry as a tree holds it.

    ``room`` is how many bytes it takes up in the budget. There may be very many of these and they
    are compared far more often than looked into, so a stat is one sequence of bytes.
    """

    stat: bytes
    room: int
    entry: bytes

    @property
    def is_doubtful(self) -> bool:
        """Whether the leaf is to be read at the next look, whatever its stat is."""
        return len(self.stat) != STAT.size

    @property
    def ctime(self) -> int:
        """When the leaf was last changed in any way, in nanoseconds."""
        return self._fields()[0]

    @property
    def mtime(self) -> int:
        """When its content was last changed, in nanoseconds."""
        return self._fields()[1]

    @property
    def size(self) -> int:
        """Its length in bytes."""
        return self._fields()[2]

    @property
    def ino(self) -> int:
        """The number of its inode."""
        return self._fields()[3]

    def _fields(self) -> tuple[int, ...]:
        if len(self.stat) == STAT.size:
            return STAT.unpack(self.stat)
        return tuple(map(int, self.stat[1:].split()))


class SeenDirectory(msgspec.Struct, gc=False, array_like=True):
    """A directory as last captured, with the names in it.

    ``entry`` is its own entry and ``reference`` what stands for it in its parent, both as a tree
    holds them; a scan leaves them empty. Nothing in it is of a kind that the garbage collector
    looks into (a set would be), so that an index may be large at no cost to the rest.
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

    def doubt(self) -> None:
        """Have the directory listed at the next look, whatever its times say.

        A name that was not to be found may be away only because a directory above was moved for
        a moment. Of that nothing shows here when it is back.
        """
        self.ctime = 0


class Kept(NamedTuple):
    """A large directory as last put into a tree: its node, and each slot of it encoded."""

    node: MapBranch
    slots: list[Raw | None]


Nodes = dict[bytes, Kept]
"""Some of the large directories, by path."""


class Edits(msgspec.Struct, array_like=True):
    """What changed since ``base``, a tree that was stored in full.

    See ``mulligan.workspace.capture.edits``. ``origins`` and ``now`` are encoded entries by their
    paths as patches have them, None where there is none: as the base has them, and now if that
    differs.
    ``touched`` are the names that changed in directories.
    """

    base: Digest
    origins: dict[str, bytes | None] = {}
    now: dict[str, bytes | None] = {}
    touched: dict[bytes, set[bytes]] = {}


class Index(msgspec.Struct, array_like=True):
    """All directories of a workspace by their path from its root, which is ``b""``.

    ``taken`` is the filesystem's time when the scan began: what changed within the clock's grain
    of it, or after, is read again. ``tree`` is the tree all this belongs to, ``files`` and
    ``size`` are how many and how large the files in it are, ``left_out`` is what is not in it, by
    directory. ``edits`` are what the tree has otherwise than the last one that was stored in full.
    ``nodes`` are large directories as put into that one, and ``listed`` is all that is left out, in
    order; neither is saved. ``mapped`` are the
    files that programs had mapped when they were read; see ``mulligan.workspace.watch.mapped``.
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

    @property
    def fresh_from(self) -> int:
        """From this time on a second change may have left the times as they were."""
        coarse = all(d.ctime % 1_000_000_000 == 0 for d in self.directories.values())
        return self.taken - (COARSE_TIMESTAMP_GRAIN_NS if coarse else TIMESTAMP_GRAIN_NS)

    @property
    def settled_until(self) -> int:
        """What was last changed before this time has no later change that its times do not show."""
        return min(self.taken - SETTLED_AFTER_NS, self.fresh_from)

    def leaf(self, path: bytes) -> Seen | None:
        """Return how a file or symlink looked, or None if there was none."""
        parent, _, name = path.rpartition(b"/")
        holder = self.directories.get(parent)
        return holder.leaves.get(name) if holder else None

    def doubt(self, paths: Iterable[bytes]) -> None:
        """Have files read at the next look, whatever their times say."""
        for path in paths:
            if (seen := self.leaf(path)) is not None:
                seen.stat = STAT.pack(0, 0, seen.size, seen.ino)


class _Saved(msgspec.Struct, array_like=True):
    """An index in a file, and the boot of the system since which what it says can be trusted.

    When the power fails, a file may lose what was written to it and still show the times of it.
    """

    boot: str
    index: Index


def load_index(file: Path, root: Path) -> Index | None:
    """Return the saved index of a workspace, or None if there is none that can be used.

    It is believed as a whole or not at all: a wrong digest in it would become part of a checkpoint
    that cannot be restored.
    """
    boot = _boot()
    try:
        body = _checked(file)
        saved = None if body is None else msgspec.msgpack.decode(body, type=_Saved)
    except (OSError, ValueError):  # msgspec's errors are of the second kind
        return None
    if saved is None or not boot or saved.boot != boot:
        return None
    found = saved.index
    return found if found.version == VERSION and found.root == root_text(root) else None


def _checked(file: Path) -> bytes | None:
    """Return what a file holds after its head, or None if that is not what was written."""
    with os.fdopen(os.open(file, _OPEN), "rb", buffering=0) as stream:
        status = os.fstat(stream.fileno())
        head = stream.read(HEAD.size) if stat.S_ISREG(status.st_mode) else b""
        if len(head) != HEAD.size:
            return None
        word, version, length, _ = HEAD.unpack(head)
        # The length comes first: nothing is read that a damaged head makes up.
        if (word, version, length) != (_WORD, VERSION, status.st_size - HEAD.size):
            return None
        body = stream.readall()
    return body if head == _head(body) else None


def _head(body: bytes) -> bytes:
    start = HEAD.pack(_WORD, VERSION, len(body), b"")[: -blake3.digest_size]
    return start + blake3(start).update(body).digest()


def root_text(root: Path) -> str:
    """Return a workspace's path as text that can be stored, whatever bytes it is made of."""
    return os.fsencode(root).decode("utf-8", "backslashreplace")


def save_index(index: Index, file: Path) -> None:
    """Save an index beside and rename it into place, or do without.

    It is a cache: it need not be synced, and nothing fails for the lack of it.
    """
    boot, index = _boot(), msgspec.structs.replace(index, nodes={}, listed=None)
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        if boot:
            body = msgspec.msgpack.encode(_Saved(boot, index))
            _write(draft, _head(body), body)
            draft.replace(file)
    except OSError:
        with suppress(OSError):
            draft.unlink()


def _write(file: Path, *parts: bytes) -> None:
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as stream:
        stream.writelines(parts)


def _boot() -> str:
    """Return what the system calls the time since it was started, or nothing if it does not."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""
