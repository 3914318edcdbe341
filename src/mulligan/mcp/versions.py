"""Revisions of the protocol: which are spoken, and how client and server agree on one.

Up to 2025-11-25 a client begins with ``initialize``, and the connection has one revision. Since
2026-07-28 there is no handshake: every request names its revision, and ``server/discover`` says
which ones the server knows. Both kinds of clients are served, request by request.
"""

from __future__ import annotations

from typing import Any

from mulligan.mcp.messages import INVALID_PARAMS, UNSUPPORTED_VERSION, Request, RpcError

WITH_HANDSHAKE = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
PER_REQUEST = ("2026-07-28",)

VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
SERVER_KEY = "io.modelcontextprotocol/serverInfo"

NAME = "mulligan"
CAPABILITIES: dict[str, Any] = {"tools": {}, "resources": {}}

CACHEABLE = {
    "server/discover": 60_000,
    "tools/list": 60_000,
    "resources/templates/list": 60_000,
    "resources/list": 0,
    "resources/read": 0,
}
"""For how many milliseconds a client may keep an answer; a session changes at any time."""


def initialized(params: dict[str, Any], version: str, instructions: str) -> dict[str, Any]:
    """Return the answer to ``initialize``: the client's revision if it is known, or the newest."""
    asked = params.get("protocolVersion")
    if not isinstance(asked, str):
        raise RpcError(INVALID_PARAMS, "initialize needs a protocolVersion.")
    return {
        "protocolVersion": asked if asked in WITH_HANDSHAKE else WITH_HANDSHAKE[-1],
        "capabilities": CAPABILITIES,
        "serverInfo": {"name": NAME, "title": "Mulligan", "version": version},
        "instructions": instructions,
    }


def discovered(instructions: str) -> dict[str, Any]:
    """Return the answer to ``server/discover``."""
    return {
        "supportedVersions": [*PER_REQUEST, *WITH_HANDSHAKE],
        "capabilities": CAPABILITIES,
        "instructions": instructions,
    }


def names_version(request: Request) -> bool:
    """Whether a request names its revision; raises ``RpcError`` for one that is not spoken."""
    asked = request.meta.get(VERSION_KEY)
    if asked is None:
        return False
    if not isinstance(asked, str):
        raise RpcError(INVALID_PARAMS, f"{VERSION_KEY} is a string.")
    if asked not in PER_REQUEST:
        spoken = [*PER_REQUEST, *WITH_HANDSHAKE]
        data = {"supported": spoken, "requested": asked}
        raise RpcError(UNSUPPORTED_VERSION, f"Revision {asked} is not supported.", data)
    return True


def completed(method: str, result: dict[str, Any], version: str) -> dict[str, Any]:
    """Return a result with the fields that revisions without a handshake require."""
    full = {**result, "resultType": "complete"}
    if method in CACHEABLE:
        full |= {"ttlMs": CACHEABLE[method], "cacheScope": "private"}
    if method == "server/discover":
        full["_meta"] = {SERVER_KEY: {"name": NAME, "title": "Mulligan", "version": version}}
    return full
