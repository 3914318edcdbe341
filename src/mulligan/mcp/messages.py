"""JSON-RPC over lines: what is read, what is answered, and what is an error."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from threading import Lock
from typing import Any

import msgspec

from mulligan.coding import agent_json

MAX_LINE_BYTES = 64 << 20
"""A longer message is dropped: the largest thing that a client sends is a hook's tool output."""

_READ_BYTES = 1 << 16

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
RESOURCE_NOT_FOUND = -32002
UNSUPPORTED_VERSION = -32022

Id = str | int | float
Reply = dict[str, Any]


class RpcError(Exception):
    """A request that is answered with an error of the protocol."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class TooLong(msgspec.Struct, frozen=True):
    """A line that was longer than the limit; its content was dropped."""


class Notification(msgspec.Struct, frozen=True):
    """A message that gets no answer."""

    method: str
    params: dict[str, Any]


class Request(msgspec.Struct, frozen=True):
    """A message that is answered under its id."""

    id: Id
    method: str
    params: dict[str, Any]

    @property
    def meta(self) -> dict[str, Any]:
        """The fields of the protocol itself that came with the parameters."""
        found = self.params.get("_meta")
        return found if isinstance(found, dict) else {}


class Lines:
    """Reads lines from a descriptor, and never keeps more than one limit's worth of bytes."""

    def __init__(self, descriptor: int, limit: int = MAX_LINE_BYTES) -> None:
        self._descriptor = descriptor
        self._limit = limit

    def __iter__(self) -> Iterator[bytes | TooLong]:
        parts: list[bytes] = []
        size, skipping = 0, False
        while data := self._read():
            *whole, rest = data.split(b"\n")
            for part in whole:
                if skipping or size + len(part) > self._limit:
                    yield TooLong()
                elif line := b"".join([*parts, part]).strip():
                    yield line
                parts, size, skipping = [], 0, False
            if rest and not skipping:
                parts.append(rest)
                size += len(rest)
            if size > self._limit:
                parts, size, skipping = [], 0, True
        # The end of the input without a newline: a message that was cut, or a client that does not
        # end its last line.
        if line := b"".join(parts).strip():
            yield line

    def _read(self) -> bytes:
        while True:
            try:
                return os.read(self._descriptor, _READ_BYTES)
            except BlockingIOError:
                # As in ``Output``: some clients give an end that does not wait.
                select.select([self._descriptor], [], [])


class Output:
    """Writes messages to a descriptor, one line each; threads may share it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = Lock()

    def send(self, message: Reply | list[Reply]) -> None:
        """Write a message. Raises ``OSError`` when the client is gone."""
        rest = memoryview(encode(message) + b"\n")
        # Whole lines only: two threads may answer at once.
        with self._lock:
            while rest:
                try:
                    rest = rest[os.write(self._descriptor, rest) :]
                except BlockingIOError:
                    # Some clients give an end that does not wait; then this thread does.
                    select.select([], [self._descriptor], [])


def encode(message: Reply | list[Reply]) -> bytes:
    """Return a message as JSON; bytes of a path that are no text are shown as escapes."""
    try:
        return msgspec.json.encode(message)
    except UnicodeEncodeError:
        return msgspec.json.encode(_escaped(message))


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_escaped(key): _escaped(child) for key, child in value.items()}
    return [_escaped(child) for child in value] if isinstance(value, list | tuple) else value


def parse(line: bytes) -> Any:
    """Return the JSON value of a line, or raise ``RpcError``."""
    try:
        return agent_json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RpcError(PARSE_ERROR, f"The line is not JSON: {error}.") from error


def message_of(value: Any) -> Request | Notification | None:
    """Return what a message is; None for an answer, of which this server expects none."""
    if not isinstance(value, dict):
        raise RpcError(INVALID_REQUEST, "A message is an object.")
    method, params, id = value.get("method"), value.get("params"), value.get("id")
    if method is None and ("result" in value or "error" in value):
        return None
    if not isinstance(method, str):
        raise RpcError(INVALID_REQUEST, "A request has a method.")
    if isinstance(id, bool) or not isinstance(id, str | int | float | None) or is_null(value):
        raise RpcError(INVALID_REQUEST, "An id is a string or a number.")
    if params is None:
        params = {}
    if not isinstance(params, dict):
        raise RpcError(INVALID_PARAMS, "The parameters of a request are an object.")
    return Notification(method, params) if id is None else Request(id, method, params)


def is_null(message: dict[str, Any]) -> bool:
    """Whether a message has an id that names nothing; a notification has none at all."""
    return "id" in message and message["id"] is None


def id_of(value: Any) -> Id | None:
    """Return the id that an error about a message names; None if it cannot be told."""
    id = value.get("id") if isinstance(value, dict) else None
    return id if isinstance(id, str | int | float) and not isinstance(id, bool) else None


def answer(id: Id, result: dict[str, Any]) -> Reply:
    """Return the answer to a request."""
    return {"jsonrpc": "2.0", "id": id, "result": result}


def failure(id: Id | None, error: RpcError) -> Reply:
    """Return the error that answers a request, or a message that is none."""
    about: dict[str, Any] = {"code": error.code, "message": str(error)}
    if error.data is not None:
        about["data"] = error.data
    return {"jsonrpc": "2.0", "id": id, "error": about}
