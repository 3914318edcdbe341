"""What is captured: generated trees of files, and the steps an agent takes in them.

A tree looks like a project with its dependencies: a median file of 3 KB and a long tail, mostly
code that compresses as code does, some binary files, scripts that may be run, symbolic links,
and directories of a few files beside some of hundreds.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

VERSION = 2
"""Part of the name under which a tree is kept; a change of what is generated needs another."""

MEDIAN, SPREAD, LARGEST = 3000, 1.55, 8 << 20
"""The sizes of files: lognormal, with a mean of 10 KB."""

BINARY, SCRIPTS, LINKS = 0.05, 0.03, 0.005
"""How many files of one are of these kinds."""

OLD = 1_700_000_000
"""When the files were last changed, in seconds: long ago, as most files were."""

_WORDS = ("core", "api", "util", "model", "view", "test", "data", "lib", "src", "app", "doc", "web")
_ENDINGS = (".py", ".js", ".ts", ".json", ".md", ".html", ".c", ".h", ".txt", ".css")


def tree_copy(count: int, keep: Path, to: Path) -> Path:
    """A copy of one's own of the tree with so many files, which is generated only once."""
    made = keep / f"tree-{count}-{VERSION}"
    if not made.is_dir():
        draft = made.with_suffix(".draft")
        shutil.rmtree(draft, ignore_errors=True)
        generate(draft, count)
        draft.rename(made)
    subprocess.run(["cp", "-a", "--reflink=auto", made, to], check=True)
    os.sync()
    return to


def generate(root: Path, count: int) -> None:
    """Write a tree with so many files; the same for the same count."""
    source = random.Random(count)
    text, noise = source_text(), source.randbytes(4 * LARGEST)
    root.mkdir(parents=True)
    directories = _directories(root, source, max(1, count // 10))
    left = count
    while left:
        for directory in directories:
            files = min(left, _files_in_one(source))
            for number in range(files):
                _write(directory, f"{source.choice(_WORDS)}_{left - number}", source, text, noise)
            left -= files
    for directory in [*directories, root]:
        os.utime(directory, (OLD, OLD))


def text_file(source: random.Random, text: bytes, size: int) -> bytes:
    """So many bytes of code that no other file has just so."""
    start = source.randrange(len(text))
    body = (text[start : start + size] + text[:size])[:size]
    first = f"# {source.random()}\n".encode()
    return (first + body)[:size]


def count_files(root: Path) -> tuple[int, int]:
    """How many files and symbolic links there are, and their bytes."""
    paths = list(_files(root))
    return len(paths), sum(path.lstat().st_size for path in paths)


class Steps:
    """What an agent does between two checkpoints: edit three files, add one, delete one."""

    def __init__(self, root: Path) -> None:
        self._source = random.Random(str(root.name))
        self._root = root
        self._text = source_text()
        self._files = [path for path in _files(root) if not path.is_symlink()]
        self._before = list(self._files)
        self._taken = 0

    def take(self) -> None:
        """Take one step."""
        self._taken += 1
        self._before = list(self._files)
        for _ in range(3):
            self._edit(self._source.choice(self._files))
        added = self._source.choice(self._files).with_name(f"added_{self._taken}.py")
        added.write_bytes(text_file(self._source, self._text, MEDIAN))
        self._files.append(added)
        at = self._source.randrange(len(self._files) - 1)
        self._files[at], self._files[-1] = self._files[-1], self._files[at]
        self._files.pop().unlink()

    def forget(self) -> None:
        """Take the last step to have been rolled back."""
        self._files = self._before

    def _edit(self, path: Path) -> None:
        """Change a line in the middle, as an edit tool does: the whole file is written anew."""
        data = path.read_bytes()
        middle = len(data) // 2
        line = f"\nedited = {self._source.random()}\n".encode()
        path.write_bytes(data[:middle] + line + data[middle:])


def source_text() -> bytes:
    """A few megabytes of real code: the standard library's."""
    paths = sorted(Path(os.__file__).parent.glob("*.py"))
    return b"".join(path.read_bytes() for path in paths)


def _directories(root: Path, source: random.Random, count: int) -> list[Path]:
    """Directories that lie in one another as those of projects do: about six deep at most sizes.

    Older ones get more directories than newer ones, so the root gets some dozens.
    """
    made = [root]
    for number in range(count - 1):
        parent = made[int(len(made) * source.random() ** 1.5)]
        made.append(parent / f"{source.choice(_WORDS)}{number}")
        made[-1].mkdir()
    return made


def _files_in_one(source: random.Random) -> int:
    return source.randrange(100, 400) if source.random() < 0.005 else source.randrange(0, 18)


def _write(directory: Path, name: str, source: random.Random, text: bytes, noise: bytes) -> None:
    kind = source.random()
    if kind < LINKS:
        os.symlink(f"../{name}", directory / name)
        return
    size = min(LARGEST, int(source.lognormvariate(0, SPREAD) * MEDIAN))
    if kind < LINKS + BINARY:
        path, start = directory / f"{name}.png", source.randrange(len(noise) - size)
        path.write_bytes(noise[start : start + size])
    else:
        path = directory / (name + source.choice(_ENDINGS))
        path.write_bytes(text_file(source, text, size))
    if source.random() < SCRIPTS:
        path.chmod(0o755)
    os.utime(path, (OLD, OLD + source.random()))


def _files(root: Path) -> Iterator[Path]:
    for directory, _, names in os.walk(root):
        for name in sorted(names):
            yield Path(directory, name)
