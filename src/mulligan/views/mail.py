"""Messages between agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mulligan.model import Message
    from mulligan.session import Session


def message_view(message: Message) -> dict[str, Any]:
    """Return a message."""
    return {
        "id": message.id,
        "to": message.to,
        "sender": message.sender,
        "subject": message.subject,
        "body": message.body,
        "priority": message.priority,
        "requires_ack": message.requires_ack,
        "sent": message.sent,
        "redelivered": message.redelivered,
    }


def unprocessed(session: Session) -> list[Message]:
    """Return the messages that agents have not processed, in the order they get them."""
    agents = session.state.get("mailbox") or {}
    return [message for agent in agents for message in session.mailbox.waiting(agent)]


def mail_view(session: Session) -> dict[str, Any]:
    """Return the messages that the agents of a session have not processed."""
    messages = [message_view(message) for message in unprocessed(session)]
    return {"session": session.name, "messages": messages}


def sent_view(id: str, to: str) -> dict[str, Any]:
    """Return a message that was sent."""
    return {"id": id, "to": to}


def acknowledged_view(id: str) -> dict[str, Any]:
    """Return a message that was acknowledged."""
    return {"id": id}
