"""The store's directory: how it is found, created and recognised."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import chain, permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mulligan.codec import FORMAT_VERSION
from mulligan.decoding import ready
from mulligan.errors import (
    DiskFull,
    InvalidConfig,
    NotAStore,
    ReadOnlyStore,
    StoreNotFound,
    UnknownFormat,
)
from mulligan.failpoints import Failpoint, FailpointHook, ignore
from mulligan.owner import open_as_owner

if TYPE_CHECKING:
    from mulligan.config.tables import TableReader

NAME = ".mulligan"
STAGING = ".mulligan.new"
"""Prefix of the names under which pointers and stores are built before they are renamed."""

FORKING = f"{STAGING}-fork-"
"""The same for the directories of forks."""

FORK_NOTES = "fork-*"
"""Names in ``tmp/`` of the notes about forks that are being created or were interrupted."""

FORMAT = "FORMAT"
CONFIG = "config.toml"
CONFIG_TABLES = ("workspace", "retention", "verify", "drift", "effects")
PROJECT = "PROJECT"
MOVED = "MOVED"
LOCKS = "locks"
DAMAGED = "damaged"
"""Where repairs keep damaged originals."""

REMOVERS = 8
"""How many files of a directory that is removed are removed at a time."""

TRIAL = "trial-"
"""How the name of a copy in ``tmp/`` begins on which a repair is tried out."""

PARTS = ("journal", "packs", LOCKS, "tmp")

PATCHES = "patches"
"""The feature of stores whose trees may be patches; see ``mulligan.workspace.capture.patch``."""

ORPHANS_HINT = (
    "Nothing was changed. `mulligan verify --repair` rebuilds what is missing; or put FORMAT and "
    "journal/ back from a copy of the store."
)

PINS = "pins"
"""The feature of stores whose every process takes pins, so that upkeep may remove what it likes."""

ORDERED = "ordered"
"""The feature of stores whose states may have dicts by sorted keys; see
``mulligan.document.ordered``."""

TOMBSTONES = "tombstones"
"""The feature of stores from which something was purged; see ``mulligan.upkeep.purge``."""

FEATURES = (PATCHES, PINS, ORDERED)
"""Features that new stores get."""

KNOWN_FEATURES = (PATCHES, PINS, ORDERED, TOMBSTONES)
"""Features known to this version.

An older store gains ``PINS`` with its first upkeep, and any store ``TOMBSTONES`` with its first
purge. ``ORDERED`` is listed by new stores alone.
"""


_DAMAGED_FORMAT = "Nothing was changed. If it is a store, put FORMAT back from a copy of it."


class Format(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the FORMAT file."""

    format: int
    id: str
    features: list[str] = []


class _Version(msgspec.Struct, frozen=True):
    format: int


def locate(path: Path) -> Path:
    """Return the store directory that a path refers to: itself, or ``.mulligan`` inside it."""
    if path.name == NAME or (path / FORMAT).is_file():
        return path
    return path / NAME


def read_format(directory: Path) -> Format:
    """Return the content of the FORMAT file; refuse anything this version does not know."""
    if not directory.exists():
        raise StoreNotFound(f"There is no store at {directory}.")
    _refuse_file(directory)
    file = directory / FORMAT
    if not directory.is_dir() or not file.is_file():
        if has_packs(directory):
            raise without_format(directory)
        raise NotAStore(f"{directory} is not a Mulligan store.")
    return parse_format(file.read_bytes(), directory)


def has_packs(directory: Path) -> bool:
    """Whether a directory has packs; one in which a store is being created has none yet."""
    packs = directory / "packs"
    return packs.is_dir() and any(packs.iterdir())


def without_format(directory: Path) -> NotAStore:
    """Return the error of a store that has packs and no FORMAT."""
    return NotAStore(
        f"The store {directory} is damaged: its file {FORMAT} is missing.",
        hint="Nothing was changed. `mulligan verify --repair` writes it again.",
    )


def parse_format(data: bytes, directory: Path) -> Format:
    """Return the parsed FORMAT file, or raise ``NotAStore`` or ``UnknownFormat``."""
    try:
        version = msgspec.json.decode(data.decode(), type=ready(_Version)).format
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotAStore(
            f"The FORMAT file of {directory} cannot be read: {error}.", hint=_DAMAGED_FORMAT
        ) from error
    if version != FORMAT_VERSION:
        raise UnknownFormat(
            f"The store at {directory} has format {version}; this version knows {FORMAT_VERSION}."
        )
    try:
        found = msgspec.json.decode(data, type=ready(Format))
    except msgspec.DecodeError as error:
        raise UnknownFormat(
            f"The FORMAT file of {directory} has unknown content: {error}."
        ) from error
    if len(found.id) != 32 or not set(found.id) <= set("0123456789abcdef"):
        raise NotAStore(
            f"The FORMAT file of {directory} has no valid store id.", hint=_DAMAGED_FORMAT
        )
    if unknown := [feature for feature in found.features if feature not in KNOWN_FEATURES]:
        raise UnknownFormat(
            f"The store at {directory} uses features this version does not know: "
            f"{', '.join(unknown)}."
        )
    return found


def id_in_format(directory: Path) -> str | None:
    """Return the store id that a FORMAT file names, however damaged the rest of it is."""
    try:
        data = (directory / FORMAT).read_bytes()
    except OSError:
        return None
    import re  # slow to import, and only repairs need it

    found = re.search(rb'"([0-9a-f]{32})"', data)
    return found[1].decode() if found else None


def is_damaged_format(directory: Path, identity: str) -> bool:
    """Whether FORMAT is not what was written, rather than written by a later version.

    A file that no JSON parser reads was damaged, and so was one that differs in one byte from what
    this version would write for the store, unless that byte is the number of a later format.
    """
    try:
        data = (directory / FORMAT).read_bytes()
    except OSError:
        return True
    if _is_later(data):
        return False
    counts = range(len(KNOWN_FEATURES) + 1)
    # In any order: an older store may gain them in another one than a new store.
    for features in chain.from_iterable(permutations(KNOWN_FEATURES, count) for count in counts):
        expected = _encoded(Format(FORMAT_VERSION, identity, list(features)))
        differ = sum(a != b for a, b in zip(data, expected, strict=False))
        if len(data) == len(expected) and differ <= 1:
            return True
    try:
        return not isinstance(msgspec.json.decode(data.decode()), dict)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return True


def _is_later(data: bytes) -> bool:
    try:
        return msgspec.json.decode(data, type=ready(_Version)).format > FORMAT_VERSION
    except msgspec.DecodeError:
        return False


def replace_format(directory: Path, content: Format) -> None:
    """Write FORMAT in place of a damaged one; durable on return."""
    temporary = directory / "tmp" / f"{FORMAT}.{os.getpid()}.{threading.get_ident()}"
    write_file(temporary, _encoded(content))
    # By a rename: a reader, and a power cut, find the old file or the new one, never a part.
    temporary.replace(directory / FORMAT)
    sync_directory(directory)


def _encoded(content: Format) -> bytes:
    return msgspec.json.format(msgspec.json.encode(content)) + b"\n"


class Config(msgspec.Struct, frozen=True):
    """The tables of a store's ``config.toml``, and what checks them."""

    tables: dict[str, Any]
    reader: TableReader

    def table(self, name: str) -> Any:
        """Return a table, empty if the file has none."""
        return self.tables.get(name, {})


def read_config(directory: Path) -> Config | None:
    """Return the store's ``config.toml``, None if it has none; refuse tables it cannot have."""
    file = directory / CONFIG
    if not file.exists():
        return None
    import tomllib  # slow to import, and few stores have a configuration

    from mulligan.config.tables import TableReader
    from mulligan.config.text import read_text

    try:
        text = read_text(file)
        tables = tomllib.loads(text)
    except OSError as error:
        raise InvalidConfig(f"{file} cannot be read: {error.strerror}.") from error
    except ValueError as error:  # that of TOML is one, too
        raise InvalidConfig(f"{file} cannot be used: {error}.") from error
    reader = TableReader(text, file, InvalidConfig)
    reader.refuse_unknown(tables, (), CONFIG_TABLES)
    return Config(tables, reader)


def create(
    directory: Path, new_journal: Callable[[Path], bytes], failpoint: FailpointHook = ignore
) -> Format:
    """Create the store's directory, or complete one whose creation was interrupted.

    The journal is created first and holds the store's id; FORMAT is linked into place last. So if
    several processes do this at once, one wins and all agree, and a store with a FORMAT always has
    a journal.
    """
    try:
        _refuse_unknown_files(directory)
        _make_parents(directory)
        for made in (directory, *(directory / part for part in PARTS)):
            made.mkdir(mode=0o700, exist_ok=True)
        # Before any content, so that git never lists files of the store.
        write_file(directory / ".gitignore", b"*\n")
        failpoint(Failpoint.STORE_DIRECTORY_MADE)
        identity = new_journal(directory / "journal")
        # The journal must be durable before FORMAT declares the store complete.
        sync_directory(directory / "journal")
        failpoint(Failpoint.STORE_JOURNAL_MADE)
        _link_format(directory, Format(FORMAT_VERSION, identity.hex(), list(FEATURES)))
        failpoint(Failpoint.STORE_FORMAT_WRITTEN)
    except OSError as error:
        raise translation(error, directory) from error
    # Read back: if another process created the store first, its file counts.
    return read_format(directory)


def _make_parents(directory: Path) -> None:
    """Make the missing directories around a store."""
    for made in reversed([parent for parent in directory.parents if not parent.exists()]):
        made.mkdir(exist_ok=True)
        # The names on the way to a store must be as durable as what it acknowledges.
        sync_directory(made.parent)


def _refuse_unknown_files(directory: Path) -> None:
    if not directory.exists():
        return
    _refuse_file(directory)
    known = {DAMAGED, FORMAT, CONFIG, PROJECT, MOVED, ".gitignore", ".git", *PARTS}
    if not directory.is_dir() or any(entry.name not in known for entry in directory.iterdir()):
        raise NotAStore(f"{directory} exists and is not a Mulligan store.")
    _refuse_orphans(directory)


def _refuse_file(directory: Path) -> None:
    """Refuse a file where a store or a readable pointer should be."""
    if directory.name == NAME and directory.is_file():
        raise NotAStore(
            f"{directory} is a file and not a readable pointer to a store.",
            hint="Nothing was changed. It may be damaged, or another user's. `mulligan stores` "
            "lists your stores. To start over, delete the file and run `mulligan init`.",
        )


def _refuse_orphans(directory: Path) -> None:
    """Refuse a directory with packs whose journal is gone: they belong to an earlier store.

    A store whose creation was interrupted has no packs, because those come after FORMAT.
    """
    journal = directory / "journal" / "data.mdb"
    if not has_packs(directory):
        return
    # After the packs: another process may create the store right now, its journal first.
    if journal.exists() and journal.stat().st_size:
        return
    raise NotAStore(
        f"{directory} holds the packs of a store whose FORMAT and journal are gone.",
        hint=ORPHANS_HINT,
    )


def _link_format(directory: Path, content: Format) -> None:
    temporary = directory / "tmp" / f"FORMAT.{os.getpid()}.{threading.get_ident()}"
    write_file(temporary, _encoded(content))
    try:
        # A hard link fails if the name exists, where a rename would replace the winner's file.
        os.link(temporary, directory / FORMAT)
    except FileExistsError:
        return
    finally:
        # The link keeps the content; without one, another process has won, and this file is of no
        # use.
        temporary.unlink()
    # FORMAT makes the store valid: its name, and the name of the store itself, must be durable.
    for synced in (directory, directory.parent):
        sync_directory(synced)


def add_feature(directory: Path, feature: str, failpoint: FailpointHook = ignore) -> None:
    """List a feature in FORMAT, durably; a version that does not know it refuses the store then.

    The caller makes sure that no other process does the same at the time.
    """
    found = read_format(directory)
    if feature not in found.features:
        _replace_features(directory, found, [*found.features, feature], failpoint)


def drop_feature(directory: Path, feature: str) -> None:
    """Take back ``add_feature``, before the store uses the feature."""
    found = read_format(directory)
    _replace_features(directory, found, [one for one in found.features if one != feature], ignore)


def _replace_features(
    directory: Path, found: Format, features: list[str], failpoint: FailpointHook
) -> None:
    content = msgspec.structs.replace(found, features=features)
    temporary = directory / "tmp" / f"FORMAT.{os.getpid()}.{threading.get_ident()}"
    try:
        write_file(temporary, msgspec.json.format(msgspec.json.encode(content)) + b"\n")
        failpoint(Failpoint.UPKEEP_FEATURE_WRITTEN)
        # Before the feature is used: an older version that would misread the store must refuse it
        # from the first byte on.
        os.replace(temporary, directory / FORMAT)
        sync_directory(directory)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"There is no space left for {directory / FORMAT}.") from error
        raise
    failpoint(Failpoint.UPKEEP_FEATURE_LISTED)


def write_file(file: Path, data: bytes) -> None:
    """Write a small file that only its owner can read, and sync it."""
    handle = open_as_owner(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(handle, data)
        # Before a caller renames it: a name must never lead to bytes that a power cut can lose.
        os.fsync(handle)
    finally:
        os.close(handle)


def write_all(handle: int, data: bytes) -> None:
    """Write all bytes to an open file; one write may be short when space runs out."""
    written = os.write(handle, data)
    while written < len(data):
        written += os.write(handle, memoryview(data)[written:])


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable: the sync of a file does not cover its name."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_tree(directory: Path) -> None:
    """Remove a directory with everything in it."""
    import shutil  # slow to import, and stores are seldom removed

    _remove_files(directory)
    shutil.rmtree(directory)


def _remove_files(directory: Path) -> None:
    """Remove the files below a directory, several at a time, as far as that is possible.

    Some filesystems wait for the disk at every file whose content was synced: milliseconds each,
    but no more for eight than for one.
    """
    from concurrent.futures import ThreadPoolExecutor

    # RuntimeError: no thread can be started here. What is left is removed one after the other.
    with suppress(RuntimeError), ThreadPoolExecutor(REMOVERS) as pool:
        for _, _, names, handle in os.fwalk(directory):
            if len(names) > 1:
                # All of them before the walk goes on, which closes the handle.
                list(pool.map(partial(_remove_file, handle), names))


def _remove_file(handle: int, name: str) -> None:
    with suppress(OSError):  # the removal of the directory reports it
        os.unlink(name, dir_fd=handle)


def remove_trials(directory: Path) -> None:
    """Remove the copies of a store that killed trials of a repair have left in it.

    The caller has the store open. A trial that runs has it locked, so none does.
    """
    for left in (directory / "tmp").glob(f"{TRIAL}*"):
        remove_tree(left)


def translation(error: OSError, directory: Path) -> Exception:
    """Return the error to raise for an ``OSError`` while creating a store."""
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return ReadOnlyStore(f"Permission to create a store at {directory} was denied.")
    if error.errno == errno.ENOENT:  # /proc and similar filesystems
        return ReadOnlyStore(
            f"No store can be created at {directory}: its filesystem takes no files."
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"There is no space left to create a store at {directory}.")
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return NotAStore(f"No store can be created at {directory}: there is a file in its place.")
    return error
