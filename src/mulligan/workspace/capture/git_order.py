"""Git directories in a workspace, where the order in which files are read matters.

Git makes a branch before HEAD names it, writes objects before the refs that name them, and packs
refs and objects before it removes the loose ones. So the branch that HEAD names exists if refs are
listed after HEAD was read, and everything that refs, HEAD, index and logs name exists if objects
are listed after those were read. What is no longer loose is in a pack that is read later still.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from mulligan.workspace.capture.index import SeenDirectory

OBJECTS, PACKS, INFO = b"objects", b"objects/pack", b"objects/info"
REFS, PACKED_REFS, HEAD, WORKTREES = b"refs", b"packed-refs", b"HEAD", b"worktrees"


class GitDirectories:
    """Recognise git directories by what they contain: ``objects`` and ``refs``.

    These are ``.git``, bare repositories, and the git directories of submodules; the data of git
    worktrees lies inside them.
    """

    def __init__(self, *known: Mapping[bytes, SeenDirectory]) -> None:
        self._known = known
        self._found: dict[bytes, bytes | None] = {}

    def of(self, directory: bytes) -> bytes | None:
        """Return the innermost git directory that is, or contains, a directory."""
        try:
            return self._found[directory]
        except KeyError:
            found = self._found[directory] = self._search(directory)
            return found

    def of_all(self, directories: Iterable[bytes], paths: Iterable[bytes]) -> set[bytes]:
        """Return the git directories that contain some directories and other paths."""
        parents = {path.rpartition(b"/")[0] for path in paths}
        return {
            found for path in parents.union(directories) if (found := self.of(path)) is not None
        }

    def is_object(self, path: bytes) -> bool:
        """Whether a file is a git object or part of a pack."""
        parent = path.rpartition(b"/")[0]
        home = self.of(parent)
        if home is None:
            return False
        return _is_in(parent, home, OBJECTS) and not _is_in(parent, home, INFO)

    def is_packed(self, path: bytes) -> bool:
        """Whether a file is part of a pack."""
        parent = path.rpartition(b"/")[0]
        home = self.of(parent)
        return home is not None and _is_in(parent, home, PACKS)

    def _search(self, directory: bytes) -> bytes | None:
        for known in self._known:
            seen = known.get(directory)
            # By content, not by the name .git: bare repositories and submodules have other names.
            if seen is not None and OBJECTS in seen.directories and b"refs" in seen.directories:
                return directory
        return self.of(directory.rpartition(b"/")[0]) if directory else None


def object_directories(home: bytes, known: Mapping[bytes, SeenDirectory]) -> Iterator[bytes]:
    """Yield the known directories that hold a repository's loose objects, parents first."""
    packs = joined(home, PACKS)
    # Packs are listed last by the caller: an object that was packed meanwhile is found there.
    return (path for path in _below(joined(home, OBJECTS), known) if path != packs)


def ref_directories(home: bytes, known: Mapping[bytes, SeenDirectory]) -> Iterator[bytes]:
    """Yield the known directories that hold a repository's loose refs, parents first."""
    return _below(joined(home, REFS), known)


def head_files(home: bytes, known: Mapping[bytes, SeenDirectory]) -> set[bytes]:
    """Return the files that name the current branch of a repository, and of its worktrees."""
    worktrees = joined(home, WORKTREES)
    found = known[worktrees].directories if worktrees in known else ()
    return {joined(home, HEAD), *(b"/".join((worktrees, name, HEAD)) for name in found)}


def _below(top: bytes, known: Mapping[bytes, SeenDirectory]) -> Iterator[bytes]:
    pending = [top]
    while pending:
        path = pending.pop()
        if path in known:
            yield path
            pending += [path + b"/" + name for name in known[path].directories]


def joined(directory: bytes, name: bytes) -> bytes:
    """Return the path of a name in a directory, which may be the root."""
    return directory + b"/" + name if directory else name


def _is_in(directory: bytes, home: bytes, part: bytes) -> bool:
    top = joined(home, part)
    return directory == top or directory.startswith(top + b"/")
