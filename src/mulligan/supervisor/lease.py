"""The supervisor's lease: taken once for a run, shared by its handles, released at the end.

Preparing and supervising use several handles on the session. All of them write under one lease and
one epoch, so there is no moment at which another process could take the session over.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

from mulligan.errors import StaleLease, StoreGone
from mulligan.recovery.resume import TTL, open_session
from mulligan.session import Session
from mulligan.session.names import SUPERVISOR
from mulligan.store import LEASE_TTL, Store
from mulligan.supervisor.records import Records


class SupervisorLease:
    """The right to run a session; a context manager that releases it.

    Raises ``StillRunning`` while another process has it.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        before = Records(store.session(name, create=False, actor=SUPERVISOR))
        # Read before the lease is taken: a request that exists now was for the previous supervisor.
        # One that is written later is for the holder of this lease.
        self.stale_request = before.request_id()
        self.session = open_session(store, name)
        """A handle without files that holds the lease."""
        self._handles = [self.session]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.session.close()

    @contextmanager
    def files(self, workspace: str | os.PathLike[str] | None, *, force: bool) -> Iterator[Session]:
        """Open another handle under the lease, with files; closing it keeps the lease."""
        epoch = self._epoch()
        # The handle adopts the lease while it is opened, because finishing an interrupted
        # restore writes. Its lifetime is long: nothing renews the lease during that capture.
        handle = self._store.session(
            self.session.name,
            create=False,
            actor=SUPERVISOR,
            workspace=workspace,
            force=force,
            recover=False,
        )
        handle.internal.adopt(epoch, TTL)
        # After the lease is adopted: the recovery writes, and must be fenced like every other
        # write.
        handle.internal.recover_on_open()
        self._handles.append(handle)
        try:
            yield handle
        finally:
            self._handles.remove(handle)
            # Closing a holder releases the lease; closing a guest does not.
            with suppress(StaleLease, StoreGone):
                handle.internal.join(epoch)
            handle.close()

    def shorten(self) -> None:
        """Switch to the usual lifetime; from now on the lease has to be renewed."""
        # Every handle: each write extends the lease by the lifetime that its own handle knows, and
        # one long one would keep other machines from taking over a dead supervisor's session.
        epoch = self._epoch()
        for handle in self._handles:
            handle.internal.adopt(epoch, LEASE_TTL)

    def _epoch(self) -> int:
        if (lease := self.session.agent.lease) is None:
            raise StaleLease(f"The lease on the session {self.session.name!r} was released.")
        return lease.epoch
