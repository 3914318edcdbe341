"""A session and its parts: the handle, its state, its leases, the surroundings it runs in."""

from mulligan.session.session import Session

__all__ = ["Session"]
