"""Purging random stores: no byte of the secret is left, and everything else is as it was."""

from __future__ import annotations

from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mulligan import Session, Store
from mulligan.errors import PurgedContent
from mulligan.testing.stores import open_store
from mulligan.upkeep import PurgeTarget, run_purge
from tests.raw_bytes import files_with
from tests.scale import times

SECRET = "sk-Qz7TfW2mXc9LrB4n"
PATTERN = r"sk-[A-Za-z0-9]{16}"

texts = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=20)
held = st.builds(lambda one, other: f"{one} {SECRET} {other}", texts, texts)
values = st.recursive(
    st.one_of(texts, held, st.integers(), st.none(), held.map(str.encode)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(texts, held), inner, max_size=4)
    ),
    max_leaves=8,
)
long = st.builds(lambda value, count: [value] * count, values, st.sampled_from([1, 70, 300]))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.sampled_from("abc"), st.one_of(values, long)),
        st.tuples(st.just("append"), st.just("list"), values),
        st.tuples(st.just("file"), st.sampled_from(("one", "dir/two")), st.integers(0, 5)),
        st.tuples(st.just("checkpoint"), st.none(), texts),
        st.tuples(st.just("fork"), st.none(), st.none()),
        st.tuples(st.just("restore"), st.none(), st.none()),
    ),
    min_size=3,
    max_size=12,
)


def content(number: int) -> bytes:
    """Return bytes of a file; those of an even number hold the secret somewhere."""
    random = Random(number)
    data = random.randbytes(random.choice((100, 5_000, 300_000)))
    at = random.randrange(len(data))
    return data if number % 2 else data[:at] + SECRET.encode() + data[at:]


class Steps:
    """A store in the making, and what its checkpoints hold."""

    def __init__(self, store: Store, work: Path) -> None:
        self._work = work
        self._store = store
        self._session = store.session("run", workspace=work)
        self.taken: list[tuple[Session, str, Any, dict[str, bytes]]] = []

    def do(self, kind: str, name: Any, value: Any) -> None:
        """Do one step."""
        session = self._session
        if kind == "set":
            session.state.set(("memory", name), value)
        elif kind == "append":
            session.state.append("list", value)
        elif kind == "file":
            (self._work / name).parent.mkdir(exist_ok=True)
            (self._work / name).write_bytes(content(value))
        elif kind == "checkpoint":
            self.checkpoint(value)
        elif kind == "fork" and self.taken:
            name = f"fork-{len(self._store.sessions())}"
            session.fork("@latest", name)
            self._session = self._store.session(name, workspace=self._work)
        elif kind == "restore" and self.taken:
            session.restore(self.taken[0][1])

    def checkpoint(self, note: str) -> None:
        """Take a checkpoint, and note what is in it."""
        taken = self._session.checkpoint(note=f"{note} {SECRET}")
        files = {
            str(file.relative_to(self._work)): file.read_bytes()
            for file in self._work.rglob("*")
            if file.is_file()
        }
        self.taken.append((self._session, taken.id, self._session.state.get(""), files))


def purged(value: Any, mark: str) -> Any:
    """Return a plain value as a purge leaves it."""
    if isinstance(value, str):
        return value.replace(SECRET, mark)
    if isinstance(value, bytes):
        return value.replace(SECRET.encode(), mark.encode())
    if isinstance(value, dict):
        return {purged(key, mark): purged(item, mark) for key, item in value.items()}
    return [purged(item, mark) for item in value] if isinstance(value, list) else value


@settings(max_examples=times(8))
@given(todo=steps)
def test_no_byte_is_left_and_the_rest_is_as_it_was(todo: list[tuple[str, Any, Any]]) -> None:
    with TemporaryDirectory() as directory:
        place, work = Path(directory) / "store", Path(directory) / "work"
        work.mkdir()
        with open_store(place) as store:
            made = Steps(store, work)
            for step in todo:
                made.do(*step)
            made.checkpoint("last")
            done = run_purge(store, PurgeTarget(match=PATTERN), by="anna", reason="leaked")
            assert done.is_proved, (done.unfinished, done.proof.left)
            assert files_with(place, SECRET.encode()) == []
            report = store.verify()
            assert (report.problems, report.warnings) == ((), ())
            [purge, *_] = done.purges
            for session, taken, state, files in made.taken:
                assert session.state.at(taken).get("") == purged(state, f"[{purge}]")
                check_files(session, taken, files)


def check_files(session: Session, taken: str, files: dict[str, bytes]) -> None:
    for path, data in files.items():
        try:
            found = session.files.read(taken, path)
        except PurgedContent:
            found = None
        assert found == (None if SECRET.encode() in data else data), path
