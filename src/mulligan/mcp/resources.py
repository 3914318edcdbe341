"""Resources: the checkpoints of the session, and files at a point."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any

import msgspec

from mulligan.errors import MulliganError
from mulligan.mcp.messages import INVALID_PARAMS, RESOURCE_NOT_FOUND, RpcError
from mulligan.views.encoding import to_json

if TYPE_CHECKING:
    from mulligan.mcp.project import Project
    from mulligan.model import Checkpoint
    from mulligan.session import Session

SCHEME = "mulligan://"
PAGE = 50
MAX_BYTES = 8 << 20
"""A larger file is refused as a resource; ``read_file`` reads it in parts."""

TEMPLATES = [
    {
        "uriTemplate": SCHEME + "{session}/checkpoints/{point}",
        "name": "checkpoint",
        "title": "Checkpoint",
        "description": "The record of a checkpoint: when, why, what it covers, and the state then.",
        "mimeType": "application/json",
    },
    {
        "uriTemplate": SCHEME + "{session}/files/{point}/{+path}",
        "name": "file",
        "title": "File at a point",
        "description": "A file of the project as it was at a checkpoint or another point.",
    },
]


class Address(msgspec.Struct, frozen=True):
    """What a URI names; ``path`` is None for a checkpoint."""

    session: str
    point: str
    path: str | None = None


def checkpoint_page(project: Project, cursor: Any) -> dict[str, Any]:
    """Return the newest checkpoints of the session as resources, a page at a time."""
    session = project.session()
    last = _position(cursor, session.head.seq)
    found = [one for one in session.checkpoints() if one.seq <= last][-PAGE - 1 :]
    page = found[-PAGE:][::-1]
    result: dict[str, Any] = {"resources": [_resource(session, one) for one in page]}
    if len(found) > PAGE:
        result["nextCursor"] = str(found[0].seq)
    return result


def read_resource(project: Project, uri: Any) -> dict[str, Any]:
    """Return what a URI names. Raises ``RpcError`` if there is no such thing."""
    if not isinstance(uri, str):
        raise RpcError(INVALID_PARAMS, "resources/read needs a uri.")
    address = parse_uri(uri)
    try:
        session = project.session(address.session)
        if address.path is None:
            text = to_json(session.internal.record(address.point))
            return _contents(uri, {"mimeType": "application/json", "text": text})
        return _contents(uri, _file(session, address.point, address.path))
    except MulliganError as error:
        said = f"{error} {error.hint}".strip()
        raise RpcError(RESOURCE_NOT_FOUND, said, {"uri": uri}) from error


def parse_uri(uri: str) -> Address:
    """Return what a URI names, or raise ``RpcError``."""
    from urllib.parse import unquote

    if uri.startswith(SCHEME):
        session, _, rest = uri.removeprefix(SCHEME).partition("/")
        kind, _, rest = rest.partition("/")
        if kind == "checkpoints" and rest and session:
            return Address(unquote(session), unquote(rest))
        point, _, path = rest.partition("/")
        if kind == "files" and point and path and session:
            return Address(unquote(session), unquote(point), unquote(path))
    raise RpcError(RESOURCE_NOT_FOUND, "There is no such resource.", {"uri": uri})


def checkpoint_uri(session: str, id: str) -> str:
    """Return the URI of a checkpoint."""
    from urllib.parse import quote

    return f"{SCHEME}{quote(session, safe='')}/checkpoints/{quote(id, safe='')}"


def _position(cursor: Any, head: int) -> int:
    if cursor is None:
        return head
    if not (isinstance(cursor, str) and cursor.isdecimal() and len(cursor) < 20):
        raise RpcError(INVALID_PARAMS, "The cursor is not one that this server gave.")
    return int(cursor)


def _resource(session: Session, taken: Checkpoint) -> dict[str, Any]:
    said = taken.note or taken.kind
    return {
        "uri": checkpoint_uri(session.name, taken.id),
        "name": taken.label or taken.id,
        "title": f"#{taken.seq} {said}",
        "description": f"{taken.kind} checkpoint by {taken.actor}, {taken.time.isoformat()}",
        "mimeType": "application/json",
    }


def _file(session: Session, point: str, path: str) -> dict[str, Any]:
    content = session.files.read(point, path)
    if len(content) > MAX_BYTES:
        said = f"{path} has {len(content)} bytes; the tool read_file reads it in parts."
        raise RpcError(INVALID_PARAMS, said)
    try:
        return {"mimeType": "text/plain", "text": content.decode("utf-8")}
    except UnicodeDecodeError:
        blob = b64encode(content).decode()
        return {"mimeType": "application/octet-stream", "blob": blob}


def _contents(uri: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"contents": [{"uri": uri, **content}]}
