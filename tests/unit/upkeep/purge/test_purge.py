"""Purging: what it finds, what it leaves, and that no byte of it is left."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from random import Random

import pytest

from mulligan import Session, Store, codec, layout
from mulligan.document import ordered
from mulligan.errors import PurgedContent, PurgeRefused, UnknownFormat
from mulligan.journal.protocol import Txn
from mulligan.model import Digest, Tombstone
from mulligan.objects import pack_space
from mulligan.store import engine_of
from mulligan.testing.stores import open_store
from mulligan.upkeep import Purged, PurgeTarget, finish_purges, plan_purge, run_drill, run_purge
from mulligan.upkeep.lock import upkeep_lock
from mulligan.upkeep.purge.run import finish_if_unfinished, unfinished_purges
from mulligan.upkeep.space.fold import fold_session
from mulligan.upkeep.space.reclaim_space import reclaim
from mulligan.workspace.capture.file_reader import SINGLE_CHUNK_BYTES
from tests.raw_bytes import files_with

SECRET = "sk-live-Zq8vKx03LmPw7RtY"
PATTERN = r"sk-live-[A-Za-z0-9]{8,}"
MARK = "by anna: leaked"
OTHER = codec.encode({"path": ["memory", "x"], "value": "forged"})


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(place: Path) -> Iterator[Store]:
    with open_store(place) as opened:
        yield opened


@pytest.fixture
def session(store: Store, work: Path) -> Session:
    return store.session("run", workspace=work)


def purge(store: Store, *paths: str, match: str | None = None, **options: float) -> Purged:
    target = PurgeTarget(paths=paths, match=match)
    return run_purge(store, target, by="anna", reason="leaked", **options)


def check_gone(store: Store, done: Purged, text: str = SECRET) -> None:
    """Nothing is left, by our own look at the files; the store is sound, and says it is done."""
    assert done.unfinished == ()
    assert done.proof.left == ()
    assert done.is_proved
    assert store.path is not None
    assert files_with(Path(store.path), text.encode()) == []
    assert unfinished_purges(engine_of(store)) == []
    report = store.verify()
    assert (report.problems, report.warnings) == ((), ())


def test_it_goes_from_messages_state_notes_and_labels(store: Store, session: Session):
    session.state.append("conversation", {"role": "user", "content": f"use {SECRET} please"})
    session.state.set("outputs/out", "x" * 10_000 + SECRET)
    session.state.set(("memory", f"key {SECRET}"), 1)
    session.state.set("memory/raw", b"bytes " + SECRET.encode())
    taken = session.checkpoint("manual", label=SECRET, note=f"with {SECRET}")
    session.mailbox.send("other", subject="s", body=SECRET)
    for number in range(600):  # past a keyframe
        session.state.append("conversation", {"role": "user", "content": f"{number}"})
    plan = plan_purge(store, PurgeTarget(match=PATTERN))
    assert SECRET not in repr(plan)
    assert {(event.kind, event.where) for event in plan.events} >= {
        ("checkpoint.created", ("label", "note")),
        ("state.set", ("path/1",)),
    }
    done = purge(store, match=PATTERN)
    check_gone(store, done)
    assert MARK in session.state.get("conversation/0/content")
    assert session.state.get("outputs/out").startswith("x" * 10_000 + "[purged ")
    assert [key for key in session.state.get("memory") if MARK in key]
    assert MARK.encode() in session.state.get("memory/raw")
    found = session.checkpoints()[0]
    assert (found.id, found.label) == (taken.id, None)
    assert found.note is not None
    assert MARK in found.note
    assert session.state.at(taken).get("conversation/0/content") == session.state.get(
        "conversation/0/content"
    )


def test_it_goes_from_tool_calls_steps_and_effects(store: Store, session: Session):
    call = session.tools.record("cat", {"file": ".env"}, result=f"TOKEN={SECRET}")
    session.step("read", lambda: {"token": SECRET})
    with session.effect("login", intent={"token": SECRET}, key="once") as effect:
        effect.result = {"session": f"s-{SECRET}"}
    session.checkpoint("manual")
    done = purge(store, match=PATTERN)
    check_gone(store, done)
    assert MARK in session.tools.get(call.id).result
    assert MARK in repr(session.state.get("steps"))
    [known] = session.effects.list()
    assert known.status == "done"
    assert MARK in known.result["session"]


def test_it_goes_from_a_key_at_which_a_part_of_a_large_dictionary_begins(
    store: Store, session: Session
) -> None:
    secret = next(f"{SECRET}{n}" for n in range(1_000) if ordered.level(f"{SECRET}{n}"))
    session.state.set("memory", {f"key {n:05}": n for n in range(3_000)} | {secret: "x"})
    session.checkpoint()
    check_gone(store, purge(store, match=PATTERN))
    session.state.set(("memory", "key 02000"), "new")
    session.state.delete(("memory", "key 01999"))
    assert [session.state.get(("memory", f"key {n:05}"), None) for n in (0, 1_999, 2_000)] == [
        0,
        None,
        "new",
    ]
    assert session.state.length("memory") == 3_000
    assert store.verify(full=True).problems == ()


def test_it_goes_from_files_also_between_two_chunks(store: Store, session: Session, work: Path):
    random = Random(5)
    (work / "plain.txt").write_text(f"a\n{SECRET}\nb")
    (work / "other.txt").write_text("other")
    big = random.randbytes(3 * SINGLE_CHUNK_BYTES)
    (work / "big").write_bytes(big)
    first = session.checkpoint()
    # Put it where two chunks meet.
    at = chunk_borders(engine_of(store), session, "big")[0] - len(SECRET) // 2
    (work / "big").write_bytes(big[:at] + SECRET.encode() + big[at + len(SECRET) :])
    second = session.checkpoint()
    done = purge(store, match=PATTERN)
    assert {file.path for file in done.plan.files} == {"plain.txt", "big"}
    check_gone(store, done)
    assert session.files.read(first, "big") == big
    assert session.files.read(second, "other.txt") == b"other"
    for point, path in ((first, "plain.txt"), (second, "big")):
        with pytest.raises(PurgedContent, match=MARK):
            session.files.read(point, path)


def chunk_borders(engine, session: Session, path: str) -> list[int]:
    """Return the offsets at which the chunks of a file in the newest checkpoint meet."""
    from mulligan.document.document import Document
    from mulligan.workspace.restore.plan import tree_changes

    tree = session.checkpoints()[-1].workspace
    assert tree is not None
    [file] = [
        c.after for c in tree_changes(Document({}, engine.load), None, tree) if c.place == path
    ]
    sizes = [len(engine.objects.get(2, chunk)) for chunk in file.chunks]
    assert len(sizes) > 1
    return [sum(sizes[:count]) for count in range(1, len(sizes))]


def test_a_path_is_purged_and_what_other_paths_share_stays(
    store: Store, session: Session, work: Path
):
    for name, text in {"a/.env": SECRET, "b/.env": SECRET, "a/own": "own " * 50}.items():
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).write_text(text)
    taken = session.checkpoint()
    done = purge(store, "a")
    assert [(one.path, one.other) for one in done.plan.shared] == [("a", "b/.env")]
    assert [file.path for file in done.plan.files] == ["a/own"]
    assert done.is_proved
    assert session.files.read(taken, "b/.env") == SECRET.encode()
    assert files_with(Path(str(store.path)), b"own " * 50) == []
    done = purge(store, "a/.env", "b/.env")
    check_gone(store, done)
    assert {(file.path, file.is_present) for file in done.plan.files} == {
        ("a/.env", True),
        ("b/.env", True),
    }


def test_a_digest_is_purged_and_structures_are_not(store: Store, session: Session, work: Path):
    (work / "file").write_text(SECRET * 3)
    session.state.set("outputs/out", SECRET * 400)
    taken = session.checkpoint()
    engine = engine_of(store)
    [chunk] = chunk_digests(engine, session, "file")
    with engine.read() as view:
        values = [d for d, _ in view.locations() if is_text(engine, d)]
    assert len(values) == 1
    target = PurgeTarget(digests=(chunk.hex(), values[0].hex()[:20]))
    done = run_purge(store, target, by="anna", reason="leaked")
    check_gone(store, done)
    assert session.state.get("outputs/out").startswith("[purged ")
    assert taken.workspace is not None
    for digits, words in (
        (taken.workspace.hex(), "holds others"),
        ("0" * 16, "There is no object"),
        ("abc", "hexadecimal"),
    ):
        with pytest.raises(PurgeRefused, match=words):
            plan_purge(store, PurgeTarget(digests=(digits,)))


def is_text(engine, digest: Digest) -> bool:
    from mulligan import codec
    from mulligan.errors import MulliganError

    try:
        return isinstance(codec.decode(engine.load(digest)), str)
    except MulliganError:
        return False


def chunk_digests(engine, session: Session, path: str) -> tuple[Digest, ...]:
    from mulligan.document.document import Document
    from mulligan.workspace.restore.plan import tree_changes

    tree = session.checkpoints()[-1].workspace
    changes = tree_changes(Document({}, engine.load), None, tree)
    [file] = [change.after for change in changes if change.place == path]
    return file.chunks


@pytest.mark.parametrize(
    "pattern",
    ["(", "a*", "state", "2026|2027|purged", "leaked", "run", "work-in", "secret-name", "ab?c?"],
)
def test_a_pattern_that_is_unsafe_is_refused(
    store: Store, session: Session, work: Path, pattern: str
):
    (work / "secret-name").write_text("x")
    session.state.set("memory/x", "abc work-in run")
    session.checkpoint()
    before = session.head
    if pattern == "work-in":
        pattern = str(work)[:20]
    with pytest.raises(PurgeRefused):
        purge(store, match=pattern)
    assert session.head == before
    assert layout.read_format(Path(str(store.path))).features == list(layout.FEATURES)


def test_nothing_found_changes_nothing(store: Store, session: Session):
    session.checkpoint()
    before = session.head
    done = purge(store, match=PATTERN)
    assert not done.plan
    assert done.is_proved
    assert session.head == before


def test_a_restore_leaves_a_purged_file_alone(store: Store, session: Session, work: Path):
    (work / ".env").write_text(SECRET)
    (work / "file").write_text("one")
    first = session.checkpoint()
    (work / "file").write_text("two")
    second = session.checkpoint()
    purge(store, match=PATTERN)
    (work / ".env").write_text("KEY=new")
    plan = session.files.plan(first)
    assert [(left.path, MARK in left.rule) for left in plan.purged] == [(".env", True)]
    done = session.restore(first)
    assert done.problems == ()
    assert [(left.path, MARK in left.rule) for left in done.purged] == [(".env", True)]
    assert (work / "file").read_text() == "one"
    assert (work / ".env").read_text() == "KEY=new"
    session.undo()
    assert (work / "file").read_text() == "two"
    assert session.restore(second).purged


@pytest.mark.parametrize("size", [1, SINGLE_CHUNK_BYTES // 10])
def test_a_restore_does_not_delete_the_only_copy(
    store: Store, session: Session, work: Path, size: int
):
    session.checkpoint(label="before")
    content = (SECRET + "\n").encode() * size
    (work / "log").write_bytes(content)
    os.utime(work / "log", (1, 1))
    session.checkpoint()
    purge(store, match=PATTERN)
    done = session.restore("before")
    assert [left.path for left in done.purged] == ["log"]
    assert (work / "log").read_bytes() == content


def test_a_copy_and_a_fork_lack_only_the_purged_file(
    store: Store, session: Session, work: Path, tmp_path: Path
):
    (work / ".env").write_text(SECRET)
    (work / "file").write_text("one")
    taken = session.checkpoint()
    purge(store, match=PATTERN)
    problems = session.files.copy(taken, tmp_path / "copy")
    assert [(one.where, MARK in one.detail) for one in problems] == [(".env", True)]
    assert (tmp_path / "copy" / "file").read_text() == "one"
    session.fork(taken, "other", tmp_path / "fork")
    assert {p.name for p in (tmp_path / "fork").iterdir()} == {"file"}
    assert run_drill(session).ok


def test_purged_content_is_not_stored_again(store: Store, session: Session, work: Path):
    (work / ".env").write_text(SECRET)
    session.state.set("outputs/out", SECRET * 400)
    session.checkpoint()
    done = purge(store, match=PATTERN)
    assert [file.is_present for file in done.plan.files] == [True]
    os.utime(work / ".env", (5, 5))
    (work / "copy").write_text(SECRET)
    taken = session.checkpoint()
    session.state.set("outputs/again", SECRET * 400)
    with pytest.raises(PurgedContent):
        session.files.read(taken, "copy")
    assert MARK in session.state.get("outputs/again")
    assert files_with(Path(str(store.path)), SECRET.encode()) == []
    (work / ".env").write_text("KEY=new")
    assert session.files.read(session.checkpoint(), ".env") == b"KEY=new"
    assert store.verify().problems == ()


def test_a_handle_with_the_secret_in_memory_does_not_write_it_again(place: Path, store: Store):
    """The document of another handle is reloaded before it is written as a keyframe."""
    one, other = store.session("run"), store.session("run")
    one.state.append("conversation", {"content": SECRET})
    assert other.state.get("conversation/0/content") == SECRET
    other.checkpoint(label="old")
    assert other.state.at("old").get("conversation/0/content") == SECRET
    purge(store, match=PATTERN)
    for number in range(520):
        other.state.append("conversation", {"content": str(number)})
    other.checkpoint()
    other.restore("old", only=["conversation"])
    assert MARK in other.state.get("conversation/0/content")
    assert files_with(Path(str(store.path)), SECRET.encode()) == []
    assert store.verify().problems == ()


def test_a_second_purge_goes_into_what_the_first_left(store: Store, session: Session):
    session.state.set("outputs/out", f"{SECRET} {'y' * 10_000} ghp_other_secret_42")
    session.state.append("conversation", f"{SECRET} and ghp_other_secret_42")
    session.checkpoint()
    check_gone(store, purge(store, match=PATTERN))
    check_gone(store, purge(store, match="ghp_[a-z_0-9]+"), "ghp_other_secret_42")
    assert session.state.get("outputs/out").count("[purged ") == 2
    assert session.state.get("conversation/0").count("[purged ") == 2


def test_folding_and_collecting_keep_what_a_purge_left(store: Store, session: Session, work: Path):
    (work / ".env").write_text(SECRET)
    session.state.set("outputs/out", SECRET + "y" * 10_000)
    taken = session.checkpoint(label="kept")
    purge(store, match=PATTERN)
    for number in range(40):
        session.state.set("step", number)
    engine = engine_of(store)
    with engine.read() as view:
        record = view.find("run")
        assert record is not None
    fold_session(engine, record, session.head.seq - 2)
    reclaim(engine)
    assert store.verify().problems == ()
    assert "[purged " in session.state.at(taken).get("outputs/out")
    with pytest.raises(PurgedContent):
        session.files.read("kept", ".env")


def test_a_pruned_checkpoint_without_its_tree_does_no_harm(
    store: Store, session: Session, work: Path
):
    (work / ".env").write_text(SECRET)
    gone = session.checkpoint()
    (work / ".env").write_text("other")
    (work / "later").write_text(SECRET)
    session.checkpoint()
    engine = engine_of(store)
    with engine.write() as txn:
        txn.prune(1, [gone.seq])
    check_gone(store, purge(store, match=PATTERN))
    reclaim(engine)
    assert not plan_purge(store, PurgeTarget(match=PATTERN))
    check_gone(store, purge(store, ".env"), "nothing")


def test_of_a_session_alone(store: Store):
    one, two = store.session("one"), store.session("two")
    one.state.set("memory/x", SECRET)
    two.state.set("memory/x", f"{SECRET}2")
    target = PurgeTarget(match=PATTERN, session="one")
    done = run_purge(store, target, by="anna", reason="leaked")
    assert MARK in one.state.get("memory/x")
    assert two.state.get("memory/x") == f"{SECRET}2"
    assert any("two" in place for place in done.proof.left)
    assert not done.is_proved


def test_a_fork_shares_what_is_purged(store: Store, session: Session):
    session.state.set("memory/x", SECRET)
    session.checkpoint()
    fork = session.fork("@latest", "fork")
    fork.state.set("memory/y", SECRET)
    check_gone(store, purge(store, match=PATTERN))
    assert MARK in fork.state.get("memory/x")
    assert MARK in fork.state.get("memory/y")


Tamper = Callable[[Txn], object]


@pytest.mark.parametrize(
    ("tamper", "words"),
    [
        (lambda txn: txn.bury_event(1, 2, OTHER, 1), "not the one that a purge names"),
        (lambda txn: txn.bury_object(Digest(b"x" * 32), Tombstone(1, None)), "not the one that"),
        (lambda txn: txn._writer.delete("purges", b"\0\0\0\1"), "not the one that a purge names"),
    ],
)
def test_verify_accepts_no_tombstone_that_no_purge_names(
    store: Store, session: Session, tamper: Tamper, words: str
):
    session.state.set("memory/x", SECRET)
    session.state.set("memory/y", 1)
    purge(store, match=PATTERN)
    assert store.verify().ok
    with engine_of(store).write() as txn:
        tamper(txn)
    found = store.verify().problems
    assert any(words in problem.detail for problem in found), found


def test_a_changed_record_without_a_tombstone_is_damage(store: Store, session: Session):
    session.state.set("memory/x", SECRET)
    session.state.set("memory/y", 1)
    with engine_of(store).write() as txn:
        txn.bury_event(1, 2, OTHER, 1)
        txn._writer.delete("purged", b"\0\0\0\1" + (2).to_bytes(8, "big"))
    assert "no purge names it" in store.verify().problems[0].detail


def test_a_version_without_tombstones_refuses_the_store(
    place: Path, store: Store, session: Session, monkeypatch: pytest.MonkeyPatch
):
    session.state.set("memory/x", SECRET)
    purge(store, match=PATTERN)
    store.close()
    with open_store(place):
        pass
    monkeypatch.setattr(layout, "KNOWN_FEATURES", (layout.PATCHES,))
    with pytest.raises(UnknownFormat, match="tombstones"):
        open_store(place)


def test_operations_under_way_are_waited_for(store: Store, session: Session):
    session.state.set("memory/x", SECRET)
    with engine_of(store).pin():
        done = purge(store, match=PATTERN, wait=0)
    assert not done.is_proved
    assert "have not ended" in done.unfinished[0]
    assert len(unfinished_purges(engine_of(store))) == 1
    assert "not finished" in store.verify().warnings[0].detail
    # What was replaced cannot be read any more, whatever is left in files.
    assert MARK in session.state.get("memory/x")
    check_gone(store, finish_purges(store))


def test_it_may_be_stopped_at_any_step(store: Store, session: Session):
    """As upkeep in the background is when its time is over; it goes on the next time."""
    session.state.set("memory/x", SECRET)
    session.state.set("memory/large", [f"kept {number}" * 200 for number in range(50)])
    session.state.set("outputs/large", f"{SECRET} " * 2_000)
    engine, steps = engine_of(store), 0
    with engine.pin():
        purge(store, match=PATTERN, wait=0)
    with upkeep_lock(engine, wait=False):
        while unfinished_purges(engine):
            finish_if_unfinished(engine, partial(next, chain(repeat(False, steps), repeat(True))))
            steps += 1
    assert steps > 1
    check_gone(store, finish_purges(store))


def test_what_was_committed_meanwhile_is_found_too(store: Store, session: Session):
    session.state.set("memory/x", SECRET)
    engine, commit = engine_of(store), engine_of(store).write
    written: list[int] = []

    def write(*args: object, **options: object):
        if not written:
            written.append(1)
            store.session("run").state.set("memory/late", f"late {SECRET}")
        return commit(*args, **options)

    engine.write = write  # type: ignore[method-assign]
    check_gone(store, purge(store, match=PATTERN))
    assert MARK in session.state.get("memory/late")


def test_where_no_holes_can_be_zeros_are_written(
    store: Store, session: Session, work: Path, monkeypatch: pytest.MonkeyPatch
):
    (work / "raw").write_bytes(Random(1).randbytes(50_000) + SECRET.encode())
    (work / "kept").write_bytes(Random(2).randbytes(50_000))
    taken = session.checkpoint()
    monkeypatch.setattr(pack_space, "punch", lambda *_: False)
    check_gone(store, purge(store, match=PATTERN))
    assert session.files.read(taken, "kept") == Random(2).randbytes(50_000)


def test_a_store_in_memory_can_be_purged():
    with open_store("memory:") as store:
        session = store.session("run")
        session.state.set("outputs/out", SECRET + "y" * 10_000)
        session.checkpoint()
        done = purge(store, match=PATTERN)
        assert done.is_proved
        assert "[purged " in session.state.get("outputs/out")
        assert store.verify().problems == ()
