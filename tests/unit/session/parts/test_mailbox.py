"""Mailboxes: each message is processed once, whatever crashes."""

from __future__ import annotations

import pytest

from mulligan import Session, Store
from mulligan.errors import InvalidName, InvalidTask, StateError
from mulligan.session.parts.mailbox import MIN_REMEMBERED_IDS, Mailbox
from mulligan.testing.clock import FakeClock
from mulligan.testing.stores import open_store


@pytest.fixture
def store() -> Store:
    return open_store("memory:", clock=FakeClock())


@pytest.fixture
def planner(store: Store) -> Session:
    return store.session("work", actor="planner")


@pytest.fixture
def coder(store: Store, planner: Session) -> Session:
    return store.session("work", actor="coder")


def restarted(session: Session) -> Mailbox:
    """The mailbox as a new process of the same agent sees it."""
    return Mailbox(session._writer, "another process")


def subjects(session: Session) -> list[str]:
    found = []
    while (message := session.mailbox.receive()) is not None:
        found.append(message.subject)
    return found


def test_a_message_arrives_once(planner: Session, coder: Session):
    planner.mailbox.send("coder", "hello", {"n": [1]})
    message = coder.mailbox.receive()
    assert message is not None
    assert (message.sender, message.subject, message.body) == ("planner", "hello", {"n": [1]})
    assert coder.mailbox.receive() is None
    assert restarted(coder).receive() is None
    assert coder.mailbox.processed() == 1


def test_urgent_ones_come_first_and_then_the_oldest(planner: Session, coder: Session):
    for subject, priority in [("a", "low"), ("b", "normal"), ("c", "urgent"), ("d", "normal")]:
        planner.mailbox.send("coder", subject, priority=priority)
    assert [m.subject for m in coder.mailbox.waiting()] == ["c", "b", "d", "a"]
    assert subjects(coder) == ["c", "b", "d", "a"]


def test_an_id_is_sent_once_even_after_it_was_processed(planner: Session, coder: Session):
    for _ in range(2):
        assert planner.mailbox.send("coder", "x", id="order-7") == "order-7"
    assert subjects(coder) == ["x"]
    planner.mailbox.send("coder", "x again", id="order-7")
    assert subjects(coder) == []


def test_what_requires_an_ack_comes_again_to_a_new_process(planner: Session, coder: Session):
    planner.mailbox.send("coder", "important", requires_ack=True)
    first = coder.mailbox.receive()
    assert first is not None
    assert not first.redelivered
    assert coder.mailbox.receive() is None  # this process has it
    again = restarted(coder).receive()
    assert again is not None
    assert (again.id, again.redelivered) == (first.id, True)
    coder.mailbox.ack(again)
    coder.mailbox.ack(again.id)
    assert restarted(coder).receive() is None
    assert coder.mailbox.processed() == 1


def test_mailboxes_are_apart(planner: Session, coder: Session):
    planner.mailbox.send("coder", "for the coder")
    planner.mailbox.send("planner", "for myself")
    assert subjects(planner) == ["for myself"]
    assert subjects(coder) == ["for the coder"]


def test_what_was_processed_is_part_of_a_checkpoint(planner: Session, coder: Session):
    planner.mailbox.send("coder", "one")
    planner.mailbox.send("coder", "two")
    coder.mailbox.receive()
    between = coder.checkpoint()
    coder.mailbox.receive()
    coder.restore(between)
    assert subjects(coder) == ["two"]


def test_receive_waits_as_long_as_it_is_told(planner: Session, coder: Session):
    clock = coder.internal.clock
    before = clock.monotonic()
    assert coder.mailbox.receive(timeout=2) is None
    assert clock.monotonic() - before >= 2


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda box: box.send("coder", "x", priority="now"), InvalidTask),
        (lambda box: box.send("@coder", "x"), InvalidName),
        (lambda box: box.send("coder", "x", id="#1"), InvalidName),
        (lambda box: box.ack("never"), InvalidTask),
    ],
)
def test_what_cannot_be_is_refused(planner: Session, call, error: type[Exception]):
    with pytest.raises(error):
        call(planner.mailbox)


def test_many_messages(planner: Session, coder: Session):
    with planner.batch():
        for number in range(200):
            planner.mailbox.send("coder", str(number))
    assert subjects(coder) == [str(number) for number in range(200)]


def test_ids_chosen_by_hand_stand_in_nobodys_way(planner: Session, coder: Session):
    planner.mailbox.send("coder", "zero", id="planner-1")
    sent = [planner.mailbox.send("coder", subject) for subject in ("one", "two")]
    assert len({*sent, "planner-1"}) == 3
    assert subjects(coder) == ["zero", "one", "two"]


def test_nothing_is_received_or_claimed_inside_a_batch(planner: Session, coder: Session):
    """What is chosen there might be another message, or task, when the batch is written."""
    planner.mailbox.send("coder", "one")
    planner.tasks.add("a")
    for choose in (coder.mailbox.receive, coder.tasks.claim):
        with pytest.raises(StateError, match="inside a batch"), coder.batch():
            choose()
    assert subjects(coder) == ["one"]


def remembered(session: Session) -> dict[str, int]:
    """The ids that an agent knows of those it processed."""
    found: dict[str, int] = session.state.get(("mailbox", session.actor, "done"))
    return found


def test_what_is_remembered_of_the_processed_is_bounded(planner: Session, coder: Session):
    most = 0
    for number in range(2 * MIN_REMEMBERED_IDS + 500):
        planner.mailbox.send("coder", "x", id=f"m-{number}")
        assert coder.mailbox.receive() is not None
        if number % 100 == 0:
            most = max(most, len(remembered(coder)))
    assert MIN_REMEMBERED_IDS < most <= 2 * MIN_REMEMBERED_IDS
    assert len(remembered(coder)) == MIN_REMEMBERED_IDS + 499
    assert coder.mailbox.processed() == 2 * MIN_REMEMBERED_IDS + 500
    for number in range(MIN_REMEMBERED_IDS + 1001, 2 * MIN_REMEMBERED_IDS + 500):
        planner.mailbox.send("coder", "again", id=f"m-{number}")
    coder.mailbox.ack(f"m-{2 * MIN_REMEMBERED_IDS}")
    assert subjects(coder) == []
    planner.mailbox.send("coder", "reused after very long", id="m-0")
    assert subjects(coder) == ["reused after very long"]


def test_what_an_earlier_version_remembered_is_read_and_shortened(planner: Session, coder: Session):
    """It kept every id there ever was."""
    count = 5 * MIN_REMEMBERED_IDS
    known = {f"m-{number}": number for number in range(count)}
    box = {"inbox": {}, "done": known, "position": count, "count": count}
    planner.internal.state.set("mailbox/coder", box)
    planner.mailbox.send("coder", "again", id="m-7")
    assert subjects(coder) == []
    planner.mailbox.send("coder", "next", id="next")
    assert subjects(coder) == ["next"]
    newest = {f"m-{number}": number for number in range(count - MIN_REMEMBERED_IDS + 1, count)}
    assert remembered(coder) == {**newest, "next": count}
    planner.mailbox.send("coder", "again", id="next")
    planner.mailbox.send("coder", "again", id=f"m-{count - 1}")
    assert subjects(coder) == []


def test_a_message_can_be_sent_with_everything_in_order(store: Store):
    sender, receiver = store.agent("sender", session="run"), store.agent("receiver", session="run")
    sender.mailbox.send("receiver", "subject", "body", "high", True)
    message = receiver.mailbox.receive()
    assert message is not None
    assert (message.priority, message.requires_ack) == ("high", True)
