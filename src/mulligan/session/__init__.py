"""A session: one timeline of one agent or a team.

``session`` is the handle, ``write`` its write path, ``parts`` the parts with their own API (state,
tasks, mailbox, agents, operations), ``runtime`` what an agent's process needs (loop, heartbeat).
"""

from mulligan.session.session import Session

__all__ = ["Session"]
