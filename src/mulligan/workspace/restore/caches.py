"""Caches that a restore removes: what tools derived from files that it changes or deletes.

No checkpoint holds them, and they are the one exception to leaving such files alone: beside other
sources they are wrong, and the tool that made them makes them again. Which ones are removed:

- Python treats a file in ``__pycache__`` as current if its source has the recorded size and the
  recorded time in seconds. The files of each changed module are removed.
- mypy also compares size and seconds, and keeps all modules in one database. ``.mypy_cache`` is
  removed when a Python file below its directory changes.
- ruff compares times to the nanosecond, and what pytest and Finder keep decides nothing. These are
  only removed with their directory.
- What tox, nox and opencode installed needs the network to recreate, and examples found by
  hypothesis may not be found again. These always stay.

User rules are not considered: what they leave out is never touched.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress

import msgspec

from mulligan.workspace.capture.ignore import BUILT_IN, Rules
from mulligan.workspace.entries import Directory, File, Link, TreePath, from_name, to_name
from mulligan.workspace.handles import Handles
from mulligan.workspace.restore.plan import TreeChange

PYTHON = "__pycache__"
MYPY = ".mypy_cache"
DISPOSABLE = frozenset({PYTHON, MYPY, ".pytest_cache", ".ruff_cache", ".DS_Store"})
"""Names of the built-in list that are removed with their directory."""

_SOURCES = (b".py", b".pyi")


class Caches(msgspec.Struct, frozen=True):
    """What a restore removes: caches in deleted directories, and caches of changed sources.

    ``changed`` are the changes to those sources. Their caches are looked up on demand, because a
    program may import a module at any time.
    """

    rules: Rules
    going: list[TreePath] = []
    changed: list[TreeChange] = []

    def stale(self, handles: Handles) -> list[TreePath]:
        """Return the caches of changed sources that exist now."""
        sources = [change.path for change in self.changed if _changes_source(change)]
        gone = set(self.going)
        found = [*_compiled(handles, self.rules, sources), *_checked(handles, self.rules, sources)]
        # Those go with their directory anyway, and must not be counted twice.
        return [path for path in found if path not in gone and path[:-1] not in gone]

    def paths(self, root: bytes) -> list[TreePath]:
        """Return everything that would be removed now."""
        handles = Handles(root)
        try:
            return sorted([*self.going, *self.stale(handles)])
        finally:
            handles.close()


def caches_in(
    root: bytes, rules: Rules, changes: Iterable[TreeChange], uncovered: Collection[str]
) -> list[TreePath]:
    """Return the caches in directories that will be deleted; they are among the uncovered."""
    holders = {path.rpartition("/")[0] for path in uncovered}
    handles = Handles(root)
    found: list[TreePath] = []
    try:
        for change in changes:
            if (
                isinstance(change.before, Directory)
                and change.after is None
                and change.place in holders
            ):
                found += _disposable(handles, rules, change.path)
    finally:
        handles.close()
    return found


def directory_of(path: TreePath) -> TreePath:
    """Return the directory that holds a cache, or that holds the cache of a path."""
    return path[:-2] if path[-2:-1] == (PYTHON,) else path[:-1]


def remove_cache(handles: Handles, path: TreePath) -> None:
    """Remove a cache or a file in one, as far as it exists; no symlink is followed."""
    try:
        parent, name = handles.directory(path[:-1]), from_name(path[-1])
        # A handle into the cache would keep its directory alive and be stale afterwards.
        handles.forget(path)
        if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            import shutil  # slow to import, and only restores remove caches

            shutil.rmtree(name, dir_fd=parent)
            return
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return
    if path[-2:-1] == (PYTHON,):
        with suppress(OSError):  # it still holds other modules
            os.rmdir(from_name(PYTHON), dir_fd=handles.directory(directory_of(path)))
            handles.forget(path[:-1])


def _disposable(handles: Handles, rules: Rules, directory: TreePath) -> Iterator[TreePath]:
    with suppress(OSError), os.scandir(handles.directory(directory)) as listing:
        for entry in listing:
            path = (*directory, to_name(os.fsencode(entry.name)))
            if entry.name in DISPOSABLE and _is_built_in(
                rules, path, is_directory=entry.is_dir(follow_symlinks=False)
            ):
                yield path


def _changes_source(change: TreeChange) -> bool:
    leaf = isinstance(change.before, File | Link) or isinstance(change.after, File | Link)
    named = bool(change.path) and from_name(change.path[-1]).endswith(_SOURCES)
    return leaf and named and change.action != "attributes"


def _compiled(handles: Handles, rules: Rules, sources: Iterable[TreePath]) -> Iterator[TreePath]:
    """Yield the files that Python compiled from sources: ``app.cpython-312.pyc`` for ``app.py``."""
    modules: dict[TreePath, set[bytes]] = {}
    for path in sources:
        stem, _, ending = from_name(path[-1]).rpartition(b".")
        # Python compiles no .pyi files.
        if ending == b"py":
            modules.setdefault((*path[:-1], PYTHON), set()).add(stem)
    for cache, stems in modules.items():
        with suppress(OSError):  # missing, or not a directory
            if _is_built_in(rules, cache, is_directory=True):
                for name in sorted(map(os.fsencode, os.listdir(handles.directory(cache)))):
                    # The stem of a module may contain dots itself: ``a.b.py`` gives
                    # ``a.b.cpython-312.pyc``.
                    if any(name[:end] in stems for end in _dots(name)):
                        yield (*cache, to_name(name))


def _checked(handles: Handles, rules: Rules, sources: Iterable[TreePath]) -> Iterator[TreePath]:
    """Yield the mypy caches in the directories above sources."""
    above = {path[:length] for path in sources for length in range(len(path))}
    for directory in sorted(above):
        cache = (*directory, MYPY)
        with suppress(OSError):
            if _is_built_in(rules, cache, is_directory=True):
                handles.directory(cache)
                yield cache


def _dots(name: bytes) -> Iterator[int]:
    return (place for place, byte in enumerate(name) if byte == ord("."))


def _is_built_in(rules: Rules, path: TreePath, *, is_directory: bool) -> bool:
    """Whether a path is left out by a built-in rule rather than a user rule."""
    whole = b"/".join(map(from_name, path))
    return rules.rule(whole, from_name(path[-1]), is_directory=is_directory) in BUILT_IN
