"""Points: every way to name a place, and errors that show what there is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import mulligan
from mulligan import Checkpoint, Point, Session
from mulligan.errors import AmbiguousPoint, InvalidName, UnknownPoint, UnknownSession
from mulligan.testing.clock import START, FakeClock
from mulligan.testing.stores import open_store


@pytest.fixture
def session(clock: FakeClock) -> Session:
    """A session of ten events, a minute apart; checkpoints are #3, #6 and #9."""
    made = open_store("memory:", clock=clock).session("run")
    for number in range(2, 11):
        clock.advance(60)
        if number % 3 == 0:
            made.checkpoint(label=f"label {number}", note=f"note {number}")
        else:
            made.state.set("number", number)
    return made


def marks(session: Session) -> list[Checkpoint]:
    return session.checkpoints()


def test_by_checkpoint_event_point_and_number(session: Session) -> None:
    first = marks(session)[0]
    assert session.point(first) == Point("run", 3, first.id)
    event = list(session.events())[4]
    assert session.point(event) == Point("run", 5)
    assert session.point(Point("run", 7)) == Point("run", 7)
    assert session.point(7) == session.point("#7") == session.point(" #7 ") == Point("run", 7)


@pytest.mark.parametrize("length", [4, 5, 12, 31, 32])
def test_by_id_and_by_prefix(session: Session, length: int) -> None:
    for made in marks(session):
        prefix = made.id[:length]
        if sum(other.id.startswith(prefix) for other in marks(session)) == 1:
            assert session.point(prefix) == Point("run", made.seq, made.id)
            assert session.point(prefix.upper()).checkpoint == made.id


def test_by_label(session: Session) -> None:
    second = marks(session)[1]
    assert session.point("label 6") == Point("run", 6, second.id)


@pytest.mark.parametrize("label", ["abcd", "12345", "2026-01-01", "deadbeef", "10m ago", "latest"])
def test_a_label_wins_over_whatever_else_it_looks_like(session: Session, label: str) -> None:
    made = session.checkpoint(label=label)
    assert session.point(label) == Point("run", made.seq, made.id)


def test_latest_and_steps_back(session: Session) -> None:
    first, second, third = (Point("run", made.seq, made.id) for made in marks(session))
    assert session.point("@latest") == session.point("@latest~0") == third
    assert session.point("@latest~1") == second
    assert session.point("@latest~2") == first
    assert session.point("label 6~1") == session.point(f"{second.checkpoint}~1") == first
    assert session.point("@latest~1~1") == first


def test_steps_back_from_between_two_checkpoints(session: Session) -> None:
    first, second, _ = (Point("run", made.seq, made.id) for made in marks(session))
    assert session.point("#8~1") == second
    assert session.point("#8~2") == first
    assert session.point("#6~1") == first


@pytest.mark.parametrize("text", ["@latest~3", "@latest~99", "#2~1", "label 3~1"])
def test_steps_past_the_first_checkpoint_are_unknown(session: Session, text: str) -> None:
    with pytest.raises(UnknownPoint, match="past the first checkpoint"):
        session.point(text)


def test_by_time(session: Session) -> None:
    # Event #N was written N - 1 minutes after the start.
    assert session.point(START) == Point("run", 1)
    assert session.point(START + timedelta(seconds=59)) == Point("run", 1)
    assert session.point(START + timedelta(seconds=60)) == Point("run", 2)
    assert session.point("2026-01-01T12:05:30+00:00") == Point("run", 6)
    assert session.point("2026-01-01 12:05:30+00:00") == Point("run", 6)
    assert session.point("2026-01-01T13:05:30+01:00") == Point("run", 6)
    assert session.point("2126-01-01T00:00Z") == Point("run", 10)


def test_a_time_without_an_offset_is_local(session: Session) -> None:
    local = (START + timedelta(minutes=4)).astimezone().replace(tzinfo=None)
    assert session.point(local) == session.point(local.isoformat()) == Point("run", 5)


@pytest.mark.parametrize(
    ("text", "seq"),
    [
        ("0s ago", 10),
        ("59s ago", 9),
        ("1m ago", 9),
        ("90S AGO", 8),
        ("1m30s ago", 8),
        ("0.05h ago", 7),
        ("9m ago", 1),
    ],
)
def test_by_age(session: Session, text: str, seq: int) -> None:
    assert session.point(text) == Point("run", seq)


def test_by_the_clock(session: Session, clock: FakeClock) -> None:
    local = START.astimezone()
    assert session.point("4 minutes ago") == Point("run", 6)
    assert session.point(local.strftime("%H:%M")) == Point("run", 1)
    fifth = (local + timedelta(minutes=4)).strftime("%H:%M:%S")
    assert session.point(fifth) == session.point(f"run:{fifth}") == Point("run", 5)
    with pytest.raises(UnknownPoint, match="is before session 'run' began at 2026-01-01 "):
        session.point((local + timedelta(minutes=30)).strftime("%H:%M"))  # yesterday


def test_a_session_of_that_name_wins_over_a_clock_time(session: Session) -> None:
    session.checkpoint()
    other = session.fork("@latest", name="12")
    marked = other.checkpoint(label="30")
    assert session.point("12:30") == Point("12", marked.seq, marked.id)


@pytest.mark.parametrize(
    "text",
    ["1h ago", "3w ago", "99999999999d ago", "2025-12-31", "0001-01-01", "9" * 400 + "d ago"],
)
def test_a_time_before_the_session_is_unknown(session: Session, text: str) -> None:
    with pytest.raises(UnknownPoint, match="is before session 'run' began at 2026-01-01"):
        session.point(text)


def test_the_ends_of_the_calendar(session: Session) -> None:
    assert session.point(datetime.max) == session.point("9999-12-31") == Point("run", 10)
    for moment in (datetime.min, datetime.min.replace(tzinfo=UTC)):
        with pytest.raises(UnknownPoint):
            session.point(moment)


def test_time_points_hold_when_the_clock_was_corrected(session: Session, clock: FakeClock) -> None:
    clock.set(clock.now() - timedelta(minutes=1))
    session.state.set("late", True)
    assert session.point(START + timedelta(minutes=3)) == Point("run", 4)
    assert session.point(clock.now() + timedelta(minutes=1)) == Point("run", 11)


def test_after_a_clock_that_was_ahead_time_is_what_it_shows_now(
    session: Session, clock: FakeClock
) -> None:
    true = clock.now()
    clock.set(true + timedelta(days=3650))
    session.state.set("ahead", True)
    clock.set(true + timedelta(minutes=20))
    session.state.set("back", True)
    clock.advance(600)
    assert (
        session.point("5m ago") == session.point(true + timedelta(minutes=25)) == Point("run", 12)
    )
    assert session.point("15m ago") == Point("run", 10)
    assert session.point(START + timedelta(minutes=3)) == Point("run", 4)
    assert session.point(datetime.max) == Point("run", 12)


@pytest.mark.parametrize("point", [0, -1, 11, "#0", "#11", "#" + "9" * 5_000, "#-1", "#x", "#"])
def test_a_number_that_is_not_there_is_unknown(session: Session, point: int | str) -> None:
    with pytest.raises(UnknownPoint):
        session.point(point)


@pytest.mark.parametrize("seq", [0, -1, 11, 10**20])
def test_a_point_that_is_not_there_is_unknown_and_not_damage(session: Session, seq: int) -> None:
    for use in (session.state.at, session.restore, session.fork, session.diff):
        with pytest.raises(UnknownPoint, match="#1 to #10"):
            use(Point("run", seq))
    assert session.head.seq == 10


def test_a_point_in_an_unknown_session_says_so(session: Session) -> None:
    with pytest.raises(UnknownSession, match="nowhere"):
        session.state.at(Point("nowhere", 1)).get()


@pytest.mark.parametrize(("text", "named"), [("try-2:start", "'try-2'"), ("25:99", None)])
def test_a_text_that_names_an_unknown_session_says_so(
    session: Session, text: str, named: str | None
) -> None:
    with pytest.raises(UnknownPoint) as caught:
        session.point(text)
    hint = caught.value.hint or ""
    assert (f"no session {named}" in hint) == (named is not None)


@pytest.mark.parametrize("text", ["nothing", "", "abc", "ffffffffff", "label", "@last", "x~1", "~"])
def test_an_unknown_point_lists_the_latest_checkpoints(session: Session, text: str) -> None:
    with pytest.raises(UnknownPoint) as caught:
        session.point(text)
    for made in marks(session):
        assert f"{made.id[:12]}  run #{made.seq}" in str(caught.value)
        assert f"label {made.seq}  note {made.seq}" in str(caught.value)


def test_a_session_without_checkpoints_says_so() -> None:
    session = mulligan.open("memory:").session("run")
    with pytest.raises(UnknownPoint, match="no checkpoint yet"):
        session.point("@latest")
    with pytest.raises(UnknownPoint, match="which has event #1 and no checkpoint"):
        session.point("nothing")


def test_an_ambiguous_prefix_lists_its_candidates(session: Session) -> None:
    known: dict[str, list[Checkpoint]] = {}
    for made in marks(session):
        known.setdefault(made.id[:4], []).append(made)
    while max(map(len, known.values())) < 2:
        made = session.checkpoint()
        known.setdefault(made.id[:4], []).append(made)
    [(prefix, twins)] = [item for item in known.items() if len(item[1]) > 1]
    with pytest.raises(AmbiguousPoint, match=f"The prefix '{prefix}' names 2") as caught:
        session.point(prefix)
    assert all(made.id[:12] in str(caught.value) for made in twins)
    for made in twins:
        assert session.point(made.id[:16]).seq == made.seq


def test_checkpoints_of_the_same_millisecond_never_collide(clock: FakeClock) -> None:
    with open_store("memory:", clock=clock) as store:
        sessions = [store.session(name) for name in ("one", "two")]
        sessions += [sessions[0].fork(1, "three"), sessions[0].fork(1, "four")]
        made = [session.checkpoint() for _ in range(50) for session in sessions]
        assert {found.time for found in made} == {START}
        assert len({found.id for found in made}) == 200
        for found in made:
            point = sessions[0].point(found.id)
            assert (point.seq, point.checkpoint) == (found.seq, found.id)
            assert store.session(found.session).checkpoints.at(found.id) == found


def test_two_stores_of_one_moment_have_different_ids(clock: FakeClock) -> None:
    made = set()
    for name in ("run", "run-1"):
        with open_store("memory:", clock=clock) as store:
            made.add(store.session(name).checkpoint().id)
    assert len(made) == 2


# --- forks and other sessions ----------------------------------------------------------------


def test_a_fork_knows_its_parents_points_up_to_the_fork(session: Session) -> None:
    first, second, third = marks(session)
    fork = session.fork(second, "fork")
    assert fork.point("label 3") == Point("fork", 3, first.id)
    assert fork.point("@latest") == Point("fork", 6, second.id)
    assert fork.point(first.id) == Point("fork", 3, first.id)
    assert fork.point(third.id) == Point("run", 9, third.id)
    with pytest.raises(UnknownPoint):
        fork.point("label 9")
    assert fork.point(START + timedelta(minutes=4)) == Point("fork", 5)


def test_a_fork_may_use_its_parents_labels_again(session: Session) -> None:
    fork = session.fork(2, "fork")
    own = fork.checkpoint(label="label 3")
    assert fork.point("label 3").checkpoint == own.id
    assert session.point("label 3").seq == 3
    later = session.fork(4, "later")
    moved = later.checkpoint(label="label 3")
    assert later.point("label 3").checkpoint == moved.id
    assert session.point("label 3").seq == 3


def test_another_session_is_named_in_front(session: Session) -> None:
    other = session.fork("label 3", "other")
    assert other.point("run:#7") == Point("run", 7)
    assert other.point("run:label 9").seq == 9
    assert other.point("run:@latest~1").seq == 6
    with pytest.raises(UnknownPoint, match="'run'"):
        other.point("run:#99")
    with pytest.raises(UnknownPoint):
        other.point("nowhere:#1")


def test_a_name_cannot_be_taken_for_a_point(session: Session) -> None:
    for label in ("@latest", "#3", "a:b", "x~1"):
        with pytest.raises(InvalidName):
            session.checkpoint(label=label)


def test_the_checkpoint_at_or_before_a_point(session: Session) -> None:
    assert session.checkpoints.at("#8") == marks(session)[1]
    assert session.checkpoints.at("#9") == marks(session)[2]
    with pytest.raises(UnknownPoint, match="at or before #2"):
        session.checkpoints.at("#2")
