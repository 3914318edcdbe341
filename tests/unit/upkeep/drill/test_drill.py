"""Drills: what is sound passes, and each planted defect is found and named."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import lmdb
import pytest

import mulligan
from mulligan import Session, Store, codec
from mulligan.errors import DiskFull, ReadOnlyStore, UnknownPoint, UnsafeWorkspace
from mulligan.failpoints import Failpoint, FailpointHook
from mulligan.model import Digest, ObjectKind, Problem
from mulligan.storage_limit import StorageLimit
from mulligan.testing.clock import FakeClock
from mulligan.testing.stores import open_store
from mulligan.upkeep import last_drill, run_drill
from mulligan.upkeep.drill import run as drill_module
from mulligan.upkeep.drill.commands import DrillCommand
from mulligan.upkeep.drill.files import expected_paths
from mulligan.upkeep.drill.record import DrillResult, Loss, drill_change
from mulligan.upkeep.recorded import MAX_RECORDED_PROBLEMS, first_problem
from mulligan.workspace.entries import File
from tests.disks import disk_of
from tests.pictures import picture

BYTES = random.Random(1).randbytes(30_000)
"""Content that does not compress, so that it can be found in a pack."""


def fill(work: Path) -> None:
    (work / "src/closed").mkdir(parents=True)
    (work / "a.txt").write_bytes(BYTES)
    (work / "src/run.sh").write_text("#!/bin/sh\n")
    (work / "src/run.sh").chmod(0o750)
    (work / "src/empty").touch()
    (work / "src/large").write_bytes(random.Random(2).randbytes(6 << 20))
    (work / "src/closed/b.txt").write_text("b")
    (work / "src/closed").chmod(0o550)
    (work / "link").symlink_to("nowhere")


@pytest.fixture
def filled(session: Session, work: Path) -> Session:
    """A session with files of all kinds, a state with keyframes, and a checkpoint."""
    fill(work)
    with session.batch():
        for number in range(600):
            session.state.set(("count", f"k{number % 50}"), number)
    session.checkpoint(label="one")
    return session


def leftovers(session: Session) -> list[Path]:
    store = session.internal.engine.directory
    assert store is not None
    return [*store.rglob("*drill-*")]


def tree_of(session: Session) -> Digest:
    held = session.internal.files_at("one")
    assert held is not None
    return held.tree


def test_a_sound_session_passes(filled: Session, work: Path) -> None:
    before = picture(work)
    result = run_drill(filled)
    assert result.problems == ()
    assert result.ok
    assert (result.session, result.seq) == ("run", filled.point("one").seq)
    assert result.checkpoint == filled.checkpoints.at("one").id
    assert result.files == 6
    assert result.file_bytes == len(BYTES) + 10 + (6 << 20) + 1
    assert result.events == result.seq
    assert result.keyframes >= 1
    assert 0 < result.recovery_seconds <= result.seconds
    assert picture(work) == before
    assert leftovers(filled) == []


def test_the_result_is_an_event_that_no_restore_takes_back(filled: Session) -> None:
    assert last_drill(filled) is None
    result = run_drill(filled)
    event = list(filled.events())[-1]
    assert (event.kind, event.payload["seq"]) == ("drill.passed", result.seq)
    assert last_drill(filled) == result
    filled.restore("one")
    assert last_drill(filled) == result
    assert last_drill(filled.fork("@latest", "other")) is None


def test_a_large_file_has_several_chunks(filled: Session) -> None:
    """So that both ways to compare content are used above."""
    entries = dict(expected_paths(filled.internal.engine, tree_of(filled)))
    large = entries["src", "large"]
    assert isinstance(large, File)
    assert len(large.chunks) > 1


def test_any_point_can_be_drilled(filled: Session, work: Path) -> None:
    (work / "later").touch()
    filled.checkpoint(label="two")
    assert run_drill(filled, "one").files == 6
    assert run_drill(filled, "two").files == 7
    fork = filled.fork("one", "fork")
    assert run_drill(fork, "run:two").ok
    assert run_drill(fork, fork.head).ok


def test_a_session_without_files(store: Store) -> None:
    session = store.session("plain")
    with pytest.raises(UnknownPoint):
        run_drill(session)
    session.state.set("a", 1)
    assert run_drill(session, session.head).loss == Loss(None, None, 2, None)
    session.checkpoint()
    result = run_drill(session)
    assert (result.ok, result.files, result.loss.paths) == (True, 0, None)


def test_a_store_in_memory(tmp_path: Path, work: Path) -> None:
    fill(work)
    with mulligan.open("memory:") as store:
        session = store.session("run", workspace=work)
        session.checkpoint()
        scratch = tmp_path / "scratch"
        scratch.mkdir()
        assert run_drill(session, scratch=scratch).ok
        assert list(scratch.iterdir()) == []


def test_what_would_be_lost_now(tmp_path: Path, work: Path) -> None:
    clock = FakeClock()
    with open_store(tmp_path / "timed", clock=clock) as store:
        session = store.session("run", workspace=work)
        taken = session.checkpoint()
        clock.advance(90)
        session.state.set("a", 1)
        (work / "new").touch()
        loss = run_drill(session).loss
        assert loss == Loss(taken.id, 90.0, 1, 1)
        clock.set(taken.time - timedelta(hours=1))
        assert run_drill(session).loss.age_seconds == 0


# --- planted defects -------------------------------------------------------------------------


def wheres(result: DrillResult) -> list[tuple[str, str]]:
    return [(problem.what, problem.where) for problem in result.problems]


def failed(session: Session, **options: object) -> DrillResult:
    result = run_drill(session, "one", **options)  # type: ignore[arg-type]
    assert not result.ok
    last = last_drill(session)
    assert last is not None
    assert not last.ok
    assert [event.kind for event in session.events(session.head.seq - 1)] == ["drill.failed"]
    assert leftovers(session) == []
    return result


def flip_in_packs(store: Path, content: bytes) -> None:
    for pack in (store / "packs").iterdir():
        data = bytearray(pack.read_bytes())
        if (at := data.find(content)) >= 0:
            data[at] ^= 1
            pack.write_bytes(data)
            return
    raise AssertionError("no pack has these bytes")


@contextmanager
def table(store: Path, name: str) -> Iterator[Callable[[bytes], bool]]:
    """Yield what deletes a record of a table of the journal."""
    with (
        lmdb.open(str(store / "journal"), max_dbs=32, map_size=1 << 30) as env,
        env.begin(write=True) as txn,
    ):
        database = env.open_db(name.encode(), txn=txn, create=False)
        yield lambda key: txn.delete(key, db=database)


def reopened(store: Path, work: Path) -> Session:
    return mulligan.open(store).session("run", workspace=work)


def test_a_damaged_chunk_is_found(filled: Session, store: Store, work: Path) -> None:
    place = Path(str(store.path))
    store.close()
    flip_in_packs(place, BYTES[1000:1100])
    result = failed(reopened(place, work))
    assert ("file", "a.txt") in wheres(result)
    assert first_problem(result).startswith("file ")


def test_a_missing_chunk_is_found(filled: Session, store: Store, work: Path) -> None:
    entry = dict(expected_paths(filled.internal.engine, tree_of(filled)))["a.txt",]
    assert isinstance(entry, File)
    place = Path(str(store.path))
    store.close()
    with table(place, "objects") as delete:
        assert delete(entry.chunks[0])
    assert wheres(failed(reopened(place, work))) == [("file", "a.txt")]


def test_a_missing_tree_is_found(filled: Session, store: Store, work: Path) -> None:
    tree, place = tree_of(filled), Path(str(store.path))
    store.close()
    with table(place, "objects") as delete:
        assert delete(tree)
    with mulligan.open(place) as opened:  # without files: they cannot be compared with the tree
        session = opened.session("run")
        assert wheres(failed(session)) == [("file", f"#{session.point('one').seq}")]


def plant_keyframe(session: Session, seq: int) -> None:
    engine = session.internal.engine
    with engine.read() as view:
        record = view.find(session.name)
    assert record is not None
    bundle = engine.bundle()
    wrong = {"state": {"wrong": True}, "undo": [], "redo": []}
    with engine.pin():
        digest = bundle.put(ObjectKind.VALUE, codec.encode(wrong))
        with engine.write(bundle, session=record.number) as txn:
            txn.put_keyframe(record.number, seq, digest)


def test_a_keyframe_that_is_not_the_state_is_found(filled: Session) -> None:
    seq = filled.point("one").seq
    plant_keyframe(filled, seq - 1)
    found = wheres(failed(filled))
    assert ("state", f"keyframe #{seq - 1}") in found
    assert ("state", f"#{seq}") in found


def test_a_wrong_keyframe_that_the_point_does_not_need_is_found(filled: Session) -> None:
    plant_keyframe(filled, 7)
    assert wheres(failed(filled)) == [("state", "keyframe #7")]


def test_a_state_with_a_missing_part_is_found(store: Store) -> None:
    session = store.session("run")
    session.state.set("text", "large " * 5_000)
    session.checkpoint(label="one")
    place = Path(str(store.path))
    engine = session.internal.engine
    with engine.read() as view:
        digests = [digest for digest, _ in view.locations()]
    large = next(
        d for d in digests if engine.objects.has(d) and b"large large" in _value(session, d)
    )
    store.close()
    with table(place, "objects") as delete:
        assert delete(large)
    with mulligan.open(place) as opened:
        found = wheres(failed(opened.session("run")))
    assert [where for what, where in found if large.hex() in where or what == "state"]


def _value(session: Session, digest: Digest) -> bytes:
    try:
        return session.internal.engine.load(digest)
    except mulligan.MulliganError:
        return b""


def after_writing(change: Callable[[Path], None], store: list[Path]) -> FailpointHook:
    """Return a hook that changes the files of a drill before they are compared."""

    def hook(point: Failpoint) -> None:
        if point is Failpoint.DRILL_WRITTEN:
            (files,) = store[0].glob("tmp/*drill-*/files")
            change(files)

    return hook


def cut(files: Path) -> None:
    os.truncate(files / "a.txt", 100)


def alter(files: Path) -> None:
    (files / "a.txt").write_bytes(BYTES[:-1] + b"!")


def alter_large(files: Path) -> None:
    with (files / "src/large").open("r+b") as file:
        file.seek(5 << 20)
        file.write(b"!!!!")


def open_up(files: Path) -> None:
    (files / "src/run.sh").chmod(0o777)


def open_directory(files: Path) -> None:
    (files / "src/closed").chmod(0o755)


def relink(files: Path) -> None:
    (files / "link").unlink()
    (files / "link").symlink_to("elsewhere")


def remove(files: Path) -> None:
    (files / "src/empty").unlink()


def replace(files: Path) -> None:
    (files / "src/empty").unlink()
    os.mkfifo(files / "src/empty", 0o644)


@pytest.mark.parametrize(
    ("change", "where", "detail"),
    [
        (cut, "a.txt", "it has 100 bytes instead of 30,000"),
        (alter, "a.txt", "its content differs"),
        (alter_large, "src/large", "its content differs"),
        (open_up, "src/run.sh", "its mode is 777 instead of 750"),
        (open_directory, "src/closed", "its mode is 755 instead of 550"),
        (relink, "link", "it points elsewhere"),
        (remove, "src/empty", "No such file or directory"),
        (replace, "src/empty", "it is not a regular file"),
    ],
)
def test_a_file_that_is_not_on_disk_as_it_should_be(
    tmp_path: Path, work: Path, change: Callable[[Path], None], where: str, detail: str
) -> None:
    fill(work)
    place: list[Path] = []
    with open_store(tmp_path / "store", failpoint=after_writing(change, place)) as store:
        place.append(Path(str(store.path)))
        session = store.session("run", workspace=work)
        session.checkpoint(label="one")
        assert failed(session).problems == (Problem("file", where, detail),)


# --- commands --------------------------------------------------------------------------------


def sh(script: str, kind: str = "drill", **fields: object) -> DrillCommand:
    return DrillCommand("coder", kind, ("sh", "-c", script), **fields)  # type: ignore[arg-type]


def test_commands_run_in_the_scratch_directory(filled: Session, tmp_path: Path) -> None:
    out = tmp_path / "out"
    told = "echo $MULLIGAN_DRILL $MULLIGAN_STORE $MINE $YOURS"
    commands = [
        sh(f"(pwd; ls; {told}; cat $MULLIGAN_STATE) > {out}", env={"MINE": "1"}),
        sh("test -x run.sh", "health", directory="src"),
    ]
    variables = {"PATH": os.environ["PATH"], "MULLIGAN_STORE": "secret", "YOURS": "2"}
    result = run_drill(
        filled, commands=commands, variables=variables, encode=lambda state: repr(len(state))
    )
    assert result.problems == ()
    assert [(made.agent, made.kind, made.exit_status) for made in result.commands] == [
        ("coder", "drill", 0),
        ("coder", "health", 0),
    ]
    first, *rest = out.read_text().splitlines()
    assert "drill-" in first
    assert rest == ["a.txt", "link", "src", "1 1 2", "1"]


@pytest.mark.parametrize(
    ("command", "status", "detail"),
    [
        (sh("exit 3"), 3, "its drill command exited with 3"),
        (sh("exit 1", "health"), 1, "its health command exited with 1"),
        (sh("kill -9 $$"), -9, "its drill command was ended by signal 9"),
        (DrillCommand("coder", "drill", ("no-such-program",)), None, "could not be started: No"),
        (sh("true", directory="gone"), None, "its drill command could not be started: No such"),
        (DrillCommand("coder", "drill", ("a\0b",)), None, "could not be started: embedded null"),
    ],
)
def test_a_command_that_fails(
    filled: Session, command: DrillCommand, status: int | None, detail: str
) -> None:
    result = failed(filled, commands=[command], variables={"PATH": os.environ["PATH"]})
    (problem,) = result.problems
    assert (problem.what, problem.where) == ("agent", "coder")
    assert detail in problem.detail
    assert [made.exit_status for made in result.commands] == [status]


def test_a_command_that_takes_too_long_is_ended_with_its_group(
    filled: Session, tmp_path: Path
) -> None:
    # The lock is held by a grandchild: it is free again only when that is gone, too.
    lock = tmp_path / "lock"
    script = f"flock {lock} sleep 1000 & wait"
    variables = {"PATH": os.environ["PATH"]}
    result = failed(filled, commands=[sh(script)], variables=variables, timeout=0.5)
    assert result.problems[0].detail == "its drill command was ended after 0.5 s"
    again = run_drill(filled, commands=[sh(f"flock {lock} true")], variables=variables)
    assert again.ok


def test_what_a_command_leaves_running_is_ended(filled: Session, tmp_path: Path) -> None:
    lock, ready = tmp_path / "lock", tmp_path / "ready"
    os.mkfifo(ready)
    script = f"flock {lock} sh -c 'echo > {ready}; sleep 1000' & read _ < {ready}"
    variables = {"PATH": os.environ["PATH"]}
    assert run_drill(filled, commands=[sh(script)], variables=variables).ok
    assert run_drill(filled, commands=[sh(f"flock {lock} true")], variables=variables).ok


def test_problems_that_are_known_before_fail_the_drill(filled: Session) -> None:
    known = Problem("team", "orchestrator/workflow", "it cannot be used")
    assert failed(filled, known=[known]).problems == (known,)


def test_the_record_names_some_problems_and_counts_all(filled: Session) -> None:
    many = [Problem("file", f"f{number}", "x" * 10_000) for number in range(100)]
    result = failed(filled, known=many)
    last = last_drill(filled)
    assert last is not None
    assert (len(result.problems), len(last.problems)) == (100, MAX_RECORDED_PROBLEMS)
    assert last.problem_count == result.problem_count == 100
    assert first_problem(last).endswith(", and 99 more")
    kind, payload = drill_change(result)
    assert (kind, payload["problems"]) == ("drill.failed", 100)


# --- space and permissions -------------------------------------------------------------------


def test_too_little_space_is_noticed_before_anything_is_written(
    filled: Session, tmp_path: Path
) -> None:
    head = filled.head
    with disk_of(3, tmp_path / "disk") as disk:
        with pytest.raises(DiskFull, match=r"needs 6,\d+,\d+ bytes in .*disk.* where [\d,]+ are"):
            run_drill(filled, scratch=disk)
        assert list(disk.iterdir()) == []
    assert filled.head == head
    assert leftovers(filled) == []


def test_a_disk_that_fills_up_meanwhile(
    filled: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drill_module, "check_space", lambda *_: None)
    head = filled.head
    with disk_of(3, tmp_path / "disk") as disk:
        with pytest.raises(DiskFull, match="no space left to write"):
            run_drill(filled, scratch=disk)
        assert list(disk.iterdir()) == []
    assert filled.head == head
    assert leftovers(filled) == []
    assert run_drill(filled).ok


def test_a_full_disk_with_the_store_on_it(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drill_module, "check_space", lambda *_: None)
    # Captures count bytes before they are compressed, and would leave this file out.
    monkeypatch.setattr(StorageLimit, "allowance", lambda _: None)
    (work / "zeros").write_bytes(bytes(range(256)) * (16 << 10))  # compresses well
    with disk_of(3, tmp_path / "disk") as disk, mulligan.open(disk) as store:
        session = store.session("run", workspace=work)
        session.checkpoint()
        with pytest.raises(DiskFull):
            run_drill(session)
        assert leftovers(session) == []
        session.state.set("a", 1)
        assert store.verify().ok


def test_a_store_that_cannot_be_written(filled: Session, store: Store) -> None:
    place = str(store.path)
    store.close()
    with mulligan.open(place, read_only=True) as opened, pytest.raises(ReadOnlyStore):
        run_drill(opened.session("run", create=False))


def test_a_scratch_directory_that_is_not_there(filled: Session, tmp_path: Path) -> None:
    with pytest.raises(UnsafeWorkspace, match="is not a directory"):
        run_drill(filled, scratch=tmp_path / "gone")
    assert leftovers(filled) == []


def test_a_scratch_directory_that_cannot_be_removed_is_named(
    filled: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patched:
        patched.setattr("mulligan.upkeep.drill.scratch.remove_tree", refuse)
        result = run_drill(filled)
    assert result.ok
    assert result.leftover is not None
    assert Path(result.leftover).is_dir()
    assert run_drill(filled).leftover is None
    assert leftovers(filled) == []


def test_a_scratch_directory_that_a_command_removed_is_no_leftover(filled: Session) -> None:
    variables = {"PATH": os.environ["PATH"]}
    result = run_drill(filled, commands=[sh('rm -rf "$(dirname "$PWD")"')], variables=variables)
    assert result.leftover is None
    assert leftovers(filled) == []


def test_the_age_of_a_drill_is_known(tmp_path: Path) -> None:
    clock = FakeClock()
    with open_store(tmp_path / "timed", clock=clock) as store:
        session = store.session("run")
        session.checkpoint()
        run_drill(session)
        clock.advance(60)
        last = last_drill(session)
        assert last is not None
        assert clock.now() - last.at == timedelta(seconds=60)


def test_ctrl_c_at_the_very_start_of_a_command_ends_it(
    filled: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings)
            started.append(self)
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        monkeypatch.setattr(subprocess, "Popen", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_drill(filled, commands=[sh("sleep 1000")], variables=dict(os.environ))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert [popen.returncode for popen in started] == [-signal.SIGKILL]
    assert last_drill(filled) is None
    assert leftovers(filled) == []
