"""The program of a sink: holds the read ends of agents' output, and drains them without a reader.

It is run by its file name in an interpreter that finds no packages. Standard input is a socket on
which its supervisor hands it the ends; when that is closed, the supervisor is gone.
"""

from __future__ import annotations

import os
import select
import socket

_CHUNK_BYTES = 65536
_MAX_READS = 16


def main(channel: socket.socket) -> None:
    """Hold the descriptors until the supervisor is gone, then read until the writers end."""
    held = _hold(channel)
    channel.close()
    poller = select.poll()
    for handle in held:
        os.set_blocking(handle, False)
        poller.register(handle, select.POLLIN)
    while held:
        for handle, _ in poller.poll():
            if not _read(handle):
                poller.unregister(handle)
                os.close(handle)
                held.discard(handle)


def _hold(channel: socket.socket) -> set[int]:
    """Keep the ends of processes that run; return those that are left when the channel closes."""
    held: set[int] = set()
    poller = select.poll()
    poller.register(channel, select.POLLIN)
    while True:
        for handle, _ in poller.poll():
            if handle != channel.fileno():
                # The last output is for the supervisor, which has this end open as well.
                poller.unregister(handle)
                os.close(handle)
                held.discard(handle)
                continue
            data, handles, _, _ = socket.recv_fds(channel, 1, _MAX_READS)
            if not data:
                return held
            for one in handles:
                poller.register(one, 0)  # reports only that the last writer closed its end
                held.add(one)


def _read(handle: int) -> bool:
    """Discard what was printed; False after the last writer has ended."""
    try:
        return bool(os.read(handle, _CHUNK_BYTES))
    except BlockingIOError:
        return True


if __name__ == "__main__":
    main(socket.socket(fileno=0))
