"""Git repositories: find them without git, exclude stores from them, and protect the stores.

``git clean -fdx`` deletes ignored and untracked files but skips nested repositories, and so does
``git stash --all``. A store inside a work tree therefore looks like one: see :func:`guard`.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Sequence
from pathlib import Path

from mulligan.layout import NAME, STAGING, sync_directory, write_file
from mulligan.owner import make_directory

EXCLUDED = (NAME, f"{STAGING}*")
"""Lines for ``info/exclude`` that keep stores and pointers out of ``git status`` and ``add``."""


def find_git(directory: Path) -> Path | None:
    """Return the git directory of the repository around a directory, worktrees included."""
    # Plain strings: every capture looks here, and most of its parents have no repository.
    place = os.fspath(directory)
    while True:
        entry = os.path.join(place, ".git")
        if os.path.isdir(entry):
            return Path(entry)
        if os.path.isfile(entry):
            text = Path(entry).read_text(errors="replace").removeprefix("gitdir:").strip()
            return Path(place, text)
        if place == (place := os.path.dirname(place)):
            return None


def exclude(directory: Path, lines: Sequence[str] = EXCLUDED) -> bool:
    """Make git ignore stores and pointers, or what ``lines`` say, in the work tree of a directory.

    Return False if there is no work tree, or its exclude file cannot be written. All worktrees of a
    repository share that file.
    """
    try:
        common = _common(directory)
        if common is None:
            return False
        (common / "info").mkdir(exist_ok=True)
        _add_lines(common / "info" / "exclude", lines)
    except OSError:
        return False  # not our repository; git shows the file, nothing worse
    return True


def exclude_file(directory: Path, name: str) -> bool:
    """Make git ignore one file below a directory, as ``exclude`` does; a tracked one stays so."""
    line = _line_of(directory, name)
    return line is not None and exclude(directory, [line])


def missing_exclusion(directory: Path, name: str) -> str:
    """Return what ``exclude_file`` would add to git's exclude file; empty for nothing."""
    line = _line_of(directory, name)
    try:
        common = _common(directory)
        if line is None or common is None:
            return ""
        file = common / "info" / "exclude"
        return os.fsdecode(_missing(file.read_bytes() if file.exists() else b"", [line]))
    except OSError:
        return ""


def drop_exclusion(directory: Path, added: str) -> None:
    """Take out again what ``missing_exclusion`` returned; not while there are linked worktrees.

    All worktrees share the file, and another one may still need the line.
    """
    text = os.fsencode(added)
    try:
        common = _common(directory)
        if common is None or _has_worktrees(common):
            return
        file = common / "info" / "exclude"
        known = file.read_bytes()
        left = _without(known, text)
        if left != known and not file.is_symlink():
            _replace(file, left)
    except OSError:
        pass  # not our repository; a line too many does no harm


def _without(known: bytes, added: bytes) -> bytes:
    line, lines = added.strip(b"\n"), known.splitlines(keepends=True)
    if known.endswith(added) and lines[-1].rstrip(b"\n") == line:
        return known[: -len(added)]
    return b"".join(one for one in lines if one.rstrip(b"\n") != line)


def _has_worktrees(common: Path) -> bool:
    try:
        return bool(os.listdir(common / "worktrees"))
    except FileNotFoundError:
        return False


def _replace(file: Path, data: bytes) -> None:
    """Replace a file in one step, with the same mode."""
    beside = file.with_name(f"{file.name}.{os.getpid()}.new")
    write_file(beside, data)
    beside.chmod(file.stat().st_mode & 0o777)
    beside.rename(file)


def _line_of(directory: Path, name: str) -> str | None:
    """Return the line for git that names one file below a directory, and no other."""
    root = work_tree(directory)
    if root is None:
        return None
    path = (directory / name).relative_to(root).as_posix()
    return "/" + re.sub(r"[\\*?[]", r"\\\g<0>", path)


def guard(store: Path) -> bool:
    """Make a store inside a work tree look like a nested repository, so that git skips it.

    Return whether it does. Where git does not ignore the store, the guard would make ``git add``
    fail, so the exclude file is written first.
    """
    if os.path.isfile(f"{store}/.git/HEAD"):
        return True
    if not exclude(store.parent):
        return False
    marker = store / ".git"
    # Git recognises a repository by HEAD, objects and refs. HEAD comes last, so that a crash leaves
    # nothing that looks like one.
    for part in (marker, marker / "objects", marker / "refs"):
        make_directory(part)
    write_file(marker / "HEAD", b"ref: refs/heads/none\n")
    # Durable before the store is used: `git clean` after a power cut must find the guard.
    for part in (marker, store):
        sync_directory(part)
    return True


def may_be_stashed(directory: Path, name: str = NAME) -> bool:
    """Whether a stash of the repository around a directory may hold a file of it: its pointer.

    Git ignores the file, so only ``git stash --all`` takes it. Objects are read without git; one
    that is in a pack, and not on its own, counts as holding the file.
    """
    common, root = _common(directory), work_tree(directory)
    if common is None or root is None:
        return False
    path = [*directory.relative_to(root).parts, *name.split("/")]
    try:
        log = (common / "logs" / "refs" / "stash").read_bytes()
    except OSError:
        return False  # no stash
    commits = [line.split(b" ", 2)[1].decode() for line in log.splitlines() if line.count(b" ") > 1]
    return any(_stash_holds(common, commit, path) for commit in commits)


def _stash_holds(common: Path, commit: str, path: list[str]) -> bool:
    """Whether the untracked files of a stash include a path; they are its third parent."""
    content = _loose_object(common, commit)
    if content is None:
        return True
    parents = _headers(content, b"parent")
    if len(parents) < 3:
        return False
    content = _loose_object(common, parents[2])
    found = None if content is None else _headers(content, b"tree")[0]
    for name in path:
        tree = None if found is None else _loose_object(common, found)
        if tree is None:
            return True
        found = _entry(tree, os.fsencode(name), len(commit) // 2)
        if found is None:
            return False
    return True


def _headers(commit: bytes, key: bytes) -> list[str]:
    lines = [line.split(b" ", 1) for line in commit.partition(b"\n\n")[0].splitlines()]
    return [line[1].decode() for line in lines if line[0] == key]


def _entry(tree: bytes, name: bytes, id_length: int) -> str | None:
    """Return the object's name of an entry of a tree: ``mode name NUL id``, repeatedly."""
    while tree:
        head, _, rest = tree.partition(b"\0")
        if head.partition(b" ")[2] == name:
            return rest[:id_length].hex()
        tree = rest[id_length:]
    return None


def _loose_object(common: Path, name: str) -> bytes | None:
    """Return the content of an object that has a file of its own; None if it has not."""
    import zlib  # only needed where there is a stash

    try:
        data = zlib.decompress((common / "objects" / name[:2] / name[2:]).read_bytes())
    except (OSError, zlib.error):
        return None
    return data.partition(b"\0")[2]


def work_tree(directory: Path) -> Path | None:
    """Return the top directory of the work tree around a directory."""
    places = (directory, *directory.parents)
    return next((place for place in places if os.path.lexists(place / ".git")), None)


def main_work_tree(directory: Path) -> Path | None:
    """Return the main work tree of a repository, for a directory in another one of its worktrees.

    None for one in the main work tree itself, in a submodule, or in no repository.
    """
    try:
        common, top = _common(directory), work_tree(directory)
    except OSError:
        return None  # not our repository
    if common is None or top is None or not (top / ".git").is_file():
        return None
    main = Path(os.path.realpath(common))
    return main.parent if main.name == ".git" else None


def git_outside(directory: Path) -> Path | None:
    """Return the git directory of a work tree that has it elsewhere, such as another worktree.

    A copy of such a directory has the same one, by the file ``.git`` that names it.
    """
    try:
        git = find_git(directory) if (directory / ".git").is_file() else None
        if git is None or not (git / "HEAD").is_file():
            return None
    except OSError:
        return None  # not our repository
    found = Path(os.path.realpath(git))
    return None if found.is_relative_to(os.path.realpath(directory)) else found


def _common(directory: Path) -> Path | None:
    """Return the git directory shared by all worktrees of the repository around a directory."""
    git = find_git(directory)
    if git is None or not (git / "HEAD").is_file():
        return None
    shared = git / "commondir"
    common = git / shared.read_text(errors="replace").strip() if shared.is_file() else git
    return common if (common / "objects").is_dir() and (common / "refs").is_dir() else None


def _add_lines(file: Path, lines: Sequence[str]) -> None:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(file, flags, 0o644), "r+b") as stream:
        # Hooks run side by side: each line is added once, or `drop_exclusion` leaves one behind.
        fcntl.flock(stream, fcntl.LOCK_EX)
        missing = _missing(stream.read(), lines)
        if missing:
            stream.write(missing)
            stream.flush()
            # The exclude lines must be durable before the guard makes the store a nested
            # repository.
            os.fsync(stream.fileno())


def _missing(known: bytes, lines: Sequence[str]) -> bytes:
    """Return what to write behind a file's content so that it has all of some lines."""
    missing = [line for line in lines if os.fsencode(line) not in known.splitlines()]
    start = b"" if known.endswith(b"\n") or not known or not missing else b"\n"
    return start + os.fsencode("".join(f"{line}\n" for line in missing))
