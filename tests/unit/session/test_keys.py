"""Foreign keys: ids from elsewhere find checkpoints and sessions, each at most one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import mulligan
from mulligan import Session, Store, aio
from mulligan.errors import InvalidName, KeyTaken
from mulligan.journal.records import LENGTH, foreign_key
from mulligan.session.names import MAX_KEY
from mulligan.store import engine_of
from mulligan.testing.stores import open_store
from mulligan.upkeep import PurgeTarget, run_purge

KEYS = ["1f0-6c2b", "ns|1f0-6c2b", "a:b~c", "走る", " ", "\x00", "x" * MAX_KEY, "🎲" * MAX_KEY]
SECRET = "sk-live-Zq8vKx03LmPw7RtY"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path) as opened:
        yield opened


@pytest.fixture
def session(store: Store) -> Session:
    return store.session("run")


@pytest.mark.parametrize("key", KEYS, ids=range(len(KEYS)))
def test_a_key_finds_its_checkpoint(store: Store, session: Session, key: str) -> None:
    assert session.checkpoints.find(key) is None
    made = session.checkpoint(key=key)
    session.checkpoint(key="another")
    assert made.key == key
    assert session.checkpoints.find(key) == made
    assert store.session("other").checkpoints.find(key) is None
    assert store.verify().ok


@pytest.mark.parametrize("key", ["", "x" * (MAX_KEY + 1), "half \ud800", 7, b"bytes"])
def test_what_is_no_key_is_refused(store: Store, session: Session, key: str) -> None:
    head = session.head
    with pytest.raises(InvalidName):
        session.checkpoint(key=key)
    with pytest.raises(InvalidName):
        session.checkpoints.find(key)
    with pytest.raises(InvalidName):
        store.session("new", key=key)
    with pytest.raises(InvalidName):
        store.find(key)
    assert session.head == head
    assert [one.name for one in store.sessions()] == ["run"]


def test_a_key_is_given_once_on_a_timeline(store: Store, session: Session) -> None:
    first = session.checkpoint(key="same")
    fork = session.fork(first, "fork")
    for one in (session, fork):
        head = one.head
        with pytest.raises(KeyTaken, match=f"#{first.seq}"):
            one.checkpoint(key="same")
        assert one.head == head
        assert one.checkpoints.find("same") == first
    later = session.checkpoint(key="later")
    own = fork.checkpoint(key="later")
    assert (session.checkpoints.find("later"), fork.checkpoints.find("later")) == (later, own)
    assert store.verify().ok


def test_of_writers_with_one_key_one_succeeds(store: Store) -> None:
    handles = [store.session("run") for _ in range(4)]

    def take(session: Session) -> str | None:
        try:
            return session.checkpoint(key="same").id
        except KeyTaken:
            return None

    with ThreadPoolExecutor(4) as pool:
        made = [found for found in pool.map(take, handles) if found is not None]
    assert len(made) == 1
    assert [one.id for one in handles[0].checkpoints()] == made
    found = handles[0].checkpoints.find("same")
    assert found is not None
    assert found.id == made[0]


def test_a_session_is_found_by_its_key(store: Store) -> None:
    made = store.session("claude-1", key="0e1f")
    assert store.find("0e1f") is not None
    assert store.session("claude-1", key="0e1f").name == made.name
    found = store.find("0e1f")
    assert found is not None
    assert found.name == "claude-1"
    assert store.find("claude-1") is None
    with pytest.raises(KeyTaken, match="'claude-1'"):
        store.session("claude-2", key="0e1f")
    with pytest.raises(KeyTaken, match="the key '0e1f'"):
        store.session("claude-1", key="other")
    store.session("plain")
    with pytest.raises(KeyTaken, match="no key"):
        store.session("plain", key="other")
    assert [one.name for one in store.sessions()] == ["claude-1", "plain"]
    assert store.verify().ok


@pytest.mark.parametrize("with_files", [False, True])
def test_a_fork_gets_a_key(store: Store, work: Path, tmp_path: Path, with_files: bool) -> None:
    (work / "file").write_text("1")
    session = store.session("run", key="one", workspace=work)
    point = session.checkpoint()
    to = tmp_path / "fork" if with_files else None
    with pytest.raises(KeyTaken):
        session.fork(point, "fork", workspace=to, key="one")
    assert to is None or not to.exists()
    session.fork(point, "fork", workspace=to, key="two")
    found = store.find("two")
    assert found is not None
    assert found.name == "fork"
    assert store.verify().ok


def test_keys_are_there_after_reopening(tmp_path: Path) -> None:
    with mulligan.open(tmp_path) as store:
        made = store.session("run", key="one").checkpoint(key="two")
    with mulligan.open(tmp_path, read_only=True) as store:
        session = store.find("one")
        assert session is not None
        assert session.checkpoints.find("two") == made


def test_verify_names_wrong_keys(store: Store, session: Session) -> None:
    store.session("keyed", key="one")
    made = session.checkpoint(key="two")
    engine = engine_of(store)
    # One of each kind is taken away, and one is added.
    with engine.write() as txn:
        txn._writer.delete("keys", foreign_key(0, "one"))  # type: ignore[attr-defined]
        txn.drop_key(1, "two")
        txn._put("keys", foreign_key(1, "forged"), LENGTH.pack(made.seq))  # type: ignore[attr-defined]
    found = store.verify(full=False)
    assert {(one.fault, one.table) for one in found.problems} == {("index", "keys")}
    assert len(found.problems) == 3


def test_a_purged_key_is_gone(store: Store, session: Session) -> None:
    session.checkpoint(key=f"call {SECRET}")
    session.checkpoint(key="other")
    run_purge(store, PurgeTarget(match="sk-live-[A-Za-z0-9]+"), by="anna", reason="leaked")
    assert session.checkpoints.find(f"call {SECRET}") is None
    assert [one.key for one in session.checkpoints()] == [None, "other"]
    assert store.verify().ok


def test_keys_with_asyncio(tmp_path: Path) -> None:
    async def run() -> None:
        async with await aio.open(tmp_path) as store:
            session = await store.session("run", key="one")
            made = await session.checkpoint(key="two")
            assert await session.checkpoints.find("two") == made
            found = await store.find("one")
            assert found is not None
            assert found.name == "run"
            assert await store.find("two") is None
            for handle in (session, found):
                await handle.close()

    asyncio.run(run())
