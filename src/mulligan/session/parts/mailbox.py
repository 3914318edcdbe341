"""Mailboxes: messages between agents, each processed once across crashes.

The ids of processed messages are part of the state, and so of every checkpoint: after a restore, an
agent receives again what it had not processed at that point, and nothing that it had.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, get_args

from mulligan.document import nodes
from mulligan.document.document import MISSING, Document
from mulligan.document.fold import STATE, event_change
from mulligan.document.values import freeze
from mulligan.errors import InvalidTask
from mulligan.model import Message, Priority
from mulligan.session.arguments import seconds, text
from mulligan.session.components import MAILBOX
from mulligan.session.names import check_name

if TYPE_CHECKING:
    from mulligan.session.write.decisions import Changes
    from mulligan.session.write.writer import Writer

PRIORITIES: tuple[Priority, ...] = get_args(Priority)

MIN_REMEMBERED_IDS = 1000
"""The least number of processed message ids that are kept per agent; the most is twice that."""

_POLL_SECONDS = 0.05


class Mailbox:
    """The mailbox of one agent of a session; it also sends to the other agents."""

    def __init__(self, writer: Writer, process: str) -> None:
        self._writer = writer
        self._process = process

    def send(
        self,
        to: str,
        subject: str,
        body: Any = None,
        priority: Priority = "normal",
        requires_ack: bool = False,
        *,
        id: str | None = None,
    ) -> str:
        """Send a message to an agent and return its id; durable when this returns.

        Sending is idempotent by ``id``: a message that is still waiting, or among the last
        ``MIN_REMEMBERED_IDS`` that the agent has processed, is not sent again. With
        ``requires_ack``, delivery is at-least-once: a later process gets the message again until
        it is acknowledged.
        """
        check_name(to, "agent name")
        text(subject, "The subject of a message")
        if priority not in PRIORITIES:
            raise InvalidTask(f"A priority is one of {', '.join(PRIORITIES)}, not {priority!r}.")
        message = freeze(
            {
                "from": self._writer.actor,
                "subject": subject,
                "body": body,
                "priority": priority,
                "requires_ack": requires_ack,
                "sent": self._writer.engine.clock.now(),
            }
        )
        name = None if id is None else check_name(id, "message id")

        def decide(work: Changes) -> str:
            box = _Box(work.document, to)
            # Inside the decision: an id that was free outside may be taken when the write lock is
            # held.
            given = name or box.free_id(self._writer.actor)
            if not box.knows(given):
                changes: list[list[Any]] = [
                    [box.path("inbox", given), {**message, "order": box.count}],
                    [box.path("count"), box.count + 1],
                ]
                work.add(event_change("mail.sent", changes, to=to, message=given))
            return given

        return self._writer.write(decide)

    def receive(self, timeout: float = 0) -> Message | None:
        """Return the next message: the most urgent, then the oldest; None if there is none.

        The message then counts as processed, unless it requires an acknowledgement. ``timeout`` is
        how many seconds to wait for a message.
        """
        self._writer.check_alone("Receiving")
        clock = self._writer.engine.clock
        until = clock.monotonic() + seconds(timeout, "A timeout", zero=True)
        while True:
            # Each look is its own transaction: waiting inside one would block all other writers.
            message = self._receive()
            if message is not None or clock.monotonic() >= until:
                return message
            # Polled: a message may come from any process, and the journal wakes none.
            clock.sleep(_POLL_SECONDS)

    def ack(self, message: Message | str) -> None:
        """Acknowledge a message; one that is already processed stays so."""
        name = text(message.id if isinstance(message, Message) else message, "A message's id")

        def decide(work: Changes) -> None:
            box = _Box(work.document, self._writer.actor)
            if not box.knows(name):
                raise InvalidTask(
                    f"There is no message {name!r} for {self._writer.actor!r}.",
                    hint="It was never sent, or it was processed long ago: "
                    f"the last {MIN_REMEMBERED_IDS} are remembered.",
                )
            if name in box.inbox:
                work.add(event_change("mail.acked", box.processed(name), message=name))

        self._writer.write(decide)

    def waiting(self, agent: str | None = None) -> list[Message]:
        """Return the messages that an agent has not processed, in the order it gets them."""
        document = self._writer.document()
        box = _Box(
            document, self._writer.actor if agent is None else check_name(agent, "agent name")
        )
        return [box.message(name, self._process) for name in box.in_order()]

    def processed(self, agent: str | None = None) -> int:
        """Return how many messages an agent has processed."""
        name = self._writer.actor if agent is None else check_name(agent, "agent name")
        return _Box(self._writer.document(), name).position

    def _receive(self) -> Message | None:
        def decide(work: Changes) -> Message | None:
            box = _Box(work.document, self._writer.actor)
            names = (n for n in box.in_order() if box.inbox[n].get("delivered") != self._process)
            name = next(names, None)
            if name is None:
                return None
            message = box.message(name, self._process)
            # Marked as delivered to this process only: another process of the agent gets it again.
            if message.requires_ack:
                changes = [[box.path("inbox", name, "delivered"), self._process]]
            else:
                changes = box.processed(name)
            work.add(event_change("mail.received", changes, message=name))
            return message

        return self._writer.write(decide)


class _Box:
    """The mailbox of one agent in one document."""

    def __init__(self, document: Document, agent: str) -> None:
        self._document = document
        self._agent = agent
        found = document.find((*STATE, MAILBOX, agent))
        self._node = {} if found is MISSING else document.resolved(found)
        self.count: int = self._at("count", 0)
        self.position: int = self._at("position", 0)
        inbox = document.resolved(self._at("inbox", {}))
        self.inbox: dict[str, dict[str, Any]] = {
            name: document.resolved(value)
            for name, value in nodes.map_items(inbox, document.resolved)
        }

    def path(self, *parts: str) -> list[str | int]:
        return [MAILBOX, self._agent, *parts]

    def knows(self, name: str) -> bool:
        done = self._document.find((*STATE, MAILBOX, self._agent, "done", name))
        return name in self.inbox or done is not MISSING

    def free_id(self, sender: str) -> str:
        """Return an id that is unused, also among ids that callers chose."""
        names = (f"{sender}-{number}" for number in count(self.count))
        return next(name for name in names if not self.knows(name))

    def in_order(self) -> list[str]:
        def key(name: str) -> tuple[int, int]:
            record = self.inbox[name]
            return -PRIORITIES.index(record["priority"]), record["order"]

        return sorted(self.inbox, key=key)

    def processed(self, name: str) -> list[list[Any]]:
        """Return the changes that remove a message from the inbox."""
        return [
            [self.path("inbox", name)],
            self._remembered(name),
            [self.path("position"), self.position + 1],
        ]

    def _remembered(self, name: str) -> list[Any]:
        """Return the change that records a message as processed; it may drop old ids."""
        resolve = self._document.resolved
        done = resolve(self._at("done", {}))
        if nodes.size(done) < 2 * MIN_REMEMBERED_IDS:
            return [self.path("done", name), self.position]
        since = self.position - MIN_REMEMBERED_IDS
        # Rarely, and half of them at once: dropping one id per message would write the whole list
        # each time.
        newest = {known: at for known, at in nodes.map_items(done, resolve) if at > since}
        return [self.path("done"), freeze({**newest, name: self.position})]

    def message(self, name: str, process: str) -> Message:
        record = self._document.plain(self.inbox[name])
        return Message(
            id=name,
            to=self._agent,
            sender=record["from"],
            subject=record["subject"],
            body=record["body"],
            priority=record["priority"],
            requires_ack=record["requires_ack"],
            sent=record["sent"],
            redelivered=record.get("delivered") not in (None, process),
        )

    def _at(self, key: str, default: Any) -> Any:
        return nodes.map_get(self._node, key, default, self._document.resolved)
