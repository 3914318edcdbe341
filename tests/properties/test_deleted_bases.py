"""Any history of two sessions on one directory: what is deleted is gone, all else is as it was."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from mulligan import Session, Store, codec
from mulligan.errors import CheckpointNeeded
from mulligan.model import Checkpoint, Digest, ObjectKind
from mulligan.store import engine_of
from mulligan.testing.stores import open_store
from mulligan.upkeep import delete_checkpoints
from mulligan.upkeep.lock import upkeep_lock
from mulligan.upkeep.space.reclaim_space import reclaim

SESSIONS = ("one", "two")
FILES = ("a", "b", "d/c", "d/e/f")

actions = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(FILES)),
        st.tuples(st.just("back"), st.sampled_from(FILES)),
        st.tuples(st.just("remove"), st.sampled_from(FILES)),
        st.tuples(st.just("take"), st.sampled_from(SESSIONS)),
        st.tuples(st.just("take"), st.sampled_from(SESSIONS)),
        st.tuples(st.just("delete"), st.integers(0, 9)),
        st.tuples(st.just("restore"), st.integers(0, 9)),
        st.tuples(st.just("collect"), st.just("")),
        st.tuples(st.just("open"), st.just("")),
    ),
    max_size=24,
)


class History:
    """Plays actions, and knows what every checkpoint that is left holds."""

    def __init__(self, place: Path) -> None:
        self.place, self.work = place / "store", place / "work"
        (self.work / "d" / "e").mkdir(parents=True)
        self.written: dict[str, list[bytes]] = {name: [] for name in FILES}
        self.held: list[tuple[str, Checkpoint, dict[str, bytes]]] = []
        self._open()

    def _open(self) -> None:
        self.store = open_store(self.place)
        self.sessions = {name: self.store.session(name, workspace=self.work) for name in SESSIONS}

    def play(self, action: str, what: str | int) -> None:
        getattr(self, f"_{action}_")(what)

    def _write_(self, name: str) -> None:
        content = f"{name} {len(self.written[name])} ".encode() * 30
        self.written[name].append(content)
        (self.work / name).write_bytes(content)

    def _back_(self, name: str) -> None:
        """Write again what was there before, perhaps in a checkpoint that is deleted."""
        if self.written[name]:
            (self.work / name).write_bytes(self.written[name][0])

    def _remove_(self, name: str) -> None:
        (self.work / name).unlink(missing_ok=True)

    def _take_(self, name: str) -> None:
        self.held.append((name, self.sessions[name].checkpoint(), files_in(self.work)))

    def _delete_(self, number: int) -> None:
        if self.held:
            name, taken, _ = one = self.held[number % len(self.held)]
            try:
                delete_checkpoints(self.store, self.sessions[name], [taken])
            except CheckpointNeeded:
                return
            self.held.remove(one)

    def _restore_(self, number: int) -> None:
        if self.held:
            name, taken, files = self.held[number % len(self.held)]
            before = files_in(self.work)
            self.held.append((name, self.sessions[name].restore(taken).safety, before))
            assert files_in(self.work) == files

    def _collect_(self, _: str) -> None:
        engine = engine_of(self.store)
        with upkeep_lock(engine, wait=True):
            assert reclaim(engine).skipped == ()
        self.check()

    def _open_(self, _: str) -> None:
        for session in self.sessions.values():
            session.close()
        self.store.close()
        self._open()

    def check(self) -> None:
        assert self.store.verify(full=True).problems == ()
        for name, taken, files in self.held:
            assert read(self.sessions[name], taken) == files
        needed = {content for *_, files in self.held for content in files.values()}
        for content in (content for written in self.written.values() for content in written):
            assert (chunk(content) in indexed(self.store)) == (content in needed)


def read(session: Session, point: Checkpoint) -> dict[str, bytes]:
    with TemporaryDirectory() as place:
        target = Path(place) / "files"
        session.files.copy(point, target)
        return files_in(target)


def files_in(directory: Path) -> dict[str, bytes]:
    found = {name: directory / name for name in FILES}
    return {name: path.read_bytes() for name, path in found.items() if path.exists()}


def indexed(store: Store) -> set[Digest]:
    with engine_of(store).read() as view:
        return {digest for digest, _ in view.locations()}


def chunk(data: bytes) -> Digest:
    return codec.digest(ObjectKind.CHUNK, data)


@given(actions=actions)
def test_what_is_deleted_is_gone_and_all_else_is_as_it_was(
    actions: list[tuple[str, str | int]],
) -> None:
    with TemporaryDirectory() as place:
        history = History(Path(place))
        for action, what in actions:
            history.play(action, what)
        history._collect_("")
        history.store.close()
