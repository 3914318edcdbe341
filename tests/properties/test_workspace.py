"""Whatever is done to files, a capture sees it, a restore brings it back, and undo undoes it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hypothesis import given, note
from hypothesis import strategies as st

import mulligan
from mulligan import Session
from mulligan.errors import InvalidPath, NothingToUndo, PathNotFound
from tests.pictures import Picture, picture, without_times
from tests.trees import plain_tree

NAMES = st.sampled_from([b"a", b"b", b"c", b"\xff\xfe", "é".encode(), b"-x y", b"new\nline"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(b"/".join)
MODES = st.sampled_from([0o600, 0o644, 0o755, 0o400, 0o700, 0o2755])
TIMES = st.sampled_from([0, 1, 999_999_999, 10**18 + 1, 1_700_000_000_123_456_789])
CONTENT = st.binary(max_size=40) | st.sampled_from([b"x" * 5000, bytes(1_100_000)])
TARGETS = st.sampled_from([b"a", b"b/c", b"/etc/passwd", b"..", b"nowhere", b"\xff"])

ACTIONS = st.one_of(
    st.tuples(st.just("write"), PATHS, CONTENT, MODES, TIMES),
    st.tuples(st.just("write"), PATHS, CONTENT, MODES, TIMES),
    st.tuples(st.just("mkdir"), PATHS, MODES.map(lambda mode: mode | 0o700)),
    st.tuples(st.just("symlink"), PATHS, TARGETS, TIMES),
    st.tuples(st.just("delete"), PATHS),
    st.tuples(st.just("rename"), PATHS, PATHS),
    st.tuples(st.just("link"), PATHS, PATHS),
    st.tuples(st.just("chmod"), PATHS, MODES),
    st.tuples(st.just("touch"), PATHS, TIMES),
    st.tuples(st.just("rewrite"), PATHS, st.binary(min_size=3, max_size=3)),
)
SCRIPTS = st.lists(ACTIONS, max_size=15)


@contextmanager
def workspace() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="mulligan-property-"))
    (place / "work").mkdir()
    try:
        yield place / "work"
    finally:
        shutil.rmtree(place)


@contextmanager
def opened(work: Path, watched: bool) -> Iterator[Session]:
    with mulligan.open("memory:") as store:
        session = store.session("run", workspace=work)
        if watched:
            session.internal.watch()
        try:
            yield session
        finally:
            session.close()


def play(work: Path, script: list[tuple[Any, ...]]) -> None:
    """Do what the script says as far as the filesystem lets us."""
    for action, path, *rest in script:
        with suppress(OSError):
            _act(action, os.fsencode(work) + b"/" + path, os.fsencode(work), rest)


def _act(action: str, path: bytes, root: bytes, rest: list[Any]) -> None:
    if action in ("write", "mkdir", "symlink"):
        os.makedirs(os.path.dirname(path), exist_ok=True)
    if action == "write":
        content, mode, moment = rest
        with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_TRUNC), "wb") as f:
            f.write(content)
        os.chmod(path, mode)
        os.utime(path, ns=(1, moment))
    elif action == "mkdir":
        os.mkdir(path)
        os.chmod(path, rest[0])
    elif action == "symlink":
        os.symlink(rest[0], path)
        os.utime(path, ns=(1, rest[1]), follow_symlinks=False)
    elif action == "delete":
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    elif action in ("rename", "link"):
        getattr(os, action)(path, root + b"/" + rest[0])
    elif not os.path.islink(path):
        _act_on_one(action, path, rest[0])


def _act_on_one(action: str, path: bytes, value: Any) -> None:
    if action == "chmod":
        os.chmod(path, value | (0o700 if os.path.isdir(path) else 0))
    elif action == "touch":
        os.utime(path, ns=(1, value))
    else:  # other bytes at the same size and time: the hardest change to see
        before = os.stat(path)
        with open(path, "r+b") as file:
            file.write(value[: before.st_size])
        os.utime(path, ns=(1, before.st_mtime_ns))


def shown(seen: Picture) -> list[str]:
    return [f"{path!r}: {entry}" for path, entry in sorted(seen.items())]


@given(SCRIPTS, SCRIPTS, st.booleans())
def test_a_restore_brings_back_exactly_and_undo_takes_it_back_exactly(
    first: list[tuple[Any, ...]], second: list[tuple[Any, ...]], watched: bool
) -> None:
    with workspace() as work, opened(work, watched) as session:
        play(work, first)
        session.state.set("step", 1)
        then, made = picture(work), session.checkpoint()
        play(work, second)
        session.state.set("step", 2)
        now = picture(work)
        for _ in range(2):
            done = session.restore(made)
            note("\n".join(["then:", *shown(then), "now:", *shown(now)]))
            assert done.problems == ()
            assert (picture(work), session.state.get("step")) == (then, 1)
            assert session.undo().problems == ()
            assert (picture(work), session.state.get("step")) == (now, 2)
            assert session.redo().problems == ()
            assert (picture(work), session.state.get("step")) == (then, 1)
            session.undo()


@given(st.lists(SCRIPTS, min_size=1, max_size=4))
def test_a_capture_of_changes_is_a_capture_of_everything(
    scripts: list[list[tuple[Any, ...]]],
) -> None:
    with workspace() as work, mulligan.open("memory:") as store:
        session = store.session("run", workspace=work)
        session.checkpoint()
        for number, script in enumerate(scripts):
            play(work, script)
            seen = picture(work)
            made = session.checkpoint()
            afresh = store.session(f"afresh-{number}", workspace=work).checkpoint()
            load = session._engine.load
            assert plain_tree(load, made.workspace) == plain_tree(load, afresh.workspace)
            assert made.coverage == afresh.coverage
            assert made.coverage is not None
            kinds = [entry.kind for entry in seen.values()]
            assert made.coverage.files == kinds.count("file") + kinds.count("symlink")
            assert made.coverage.directories == kinds.count("directory")
            assert made.coverage.bytes == sum(entry.size for entry in seen.values())
            copy = work.with_name(f"copy-{number}")
            assert session.files.copy(made, copy) == []
            assert picture(copy) == seen


@given(
    st.lists(
        SCRIPTS.map(lambda script: ("play", script))
        | st.tuples(st.just("checkpoint"), st.none())
        | st.tuples(st.just("restore"), st.integers(0, 5))
        | st.tuples(st.sampled_from(["undo", "redo"]), st.none()),
        max_size=16,
    ),
    st.booleans(),
)
def test_restores_undos_and_redos_lead_where_a_model_says(
    steps: list[tuple[str, Any]], watched: bool
) -> None:
    with workspace() as work, opened(work, watched) as session:
        points = [(session.checkpoint(), picture(work))]
        undo: list[Picture] = []
        redo: list[Picture] = []
        for step, value in steps:
            before = picture(work)
            if step == "play":
                play(work, value)
            elif step == "checkpoint":
                points.append((session.checkpoint(), before))
                assert picture(work) == before
            elif step == "restore":
                made, then = points[value % len(points)]
                assert session.restore(made).problems == ()
                assert picture(work) == then
                undo.append(before)
                redo.clear()
            else:
                source, other = (undo, redo) if step == "undo" else (redo, undo)
                try:
                    getattr(session, step)()
                except NothingToUndo:
                    assert not source
                    continue
                assert picture(work) == source.pop()
                other.append(before)


@given(SCRIPTS, SCRIPTS, PATHS)
def test_a_part_comes_back_and_nothing_else_is_touched(
    first: list[tuple[Any, ...]], second: list[tuple[Any, ...]], part: bytes
) -> None:
    with workspace() as work, mulligan.open("memory:") as store:
        session = store.session("run", workspace=work)
        play(work, first)
        then, made = picture(work), session.checkpoint()
        play(work, second)
        now = picture(work)
        try:
            done = session.restore(made, only=[os.fsdecode(part)])
        except (InvalidPath, PathNotFound):
            assert part not in then
            assert not os.path.lexists(os.fsencode(work) + b"/" + part)
            assert picture(work) == now
            return
        note("\n".join(["then:", *shown(then), "now:", *shown(now)]))
        assert done.problems == ()
        after = picture(work)
        assert inside(after, part) == inside(then, part)
        # What is on the way to the part may have had to be made, or to make way.
        others = {p for p in {*now, *after} if not within(p, part) and not within(part, p)}
        kept = {p for p in others if part not in then or not replaced(p, part, then, now)}
        one = {p: seen for p, seen in now.items() if p in kept}
        other = {p: seen for p, seen in after.items() if p in kept}
        assert without_times(other) == without_times(one)
        session.undo()
        assert picture(work) == now


def within(path: bytes, part: bytes) -> bool:
    return path == part or path.startswith(part + b"/") or part == b""


def inside(seen: Picture, part: bytes) -> Picture:
    return {path: entry for path, entry in seen.items() if within(path, part)}


def replaced(path: bytes, part: bytes, then: Picture, now: Picture) -> bool:
    """Whether a path had to go because something on the way to the part is no directory now."""
    parts = part.split(b"/")
    ways = [b"/".join(parts[:length]) for length in range(1, len(parts))]
    blocked = [way for way in ways if way in now and now[way].kind != "directory"]
    return any(within(path, way) for way in blocked)
