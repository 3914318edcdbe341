"""Values and paths: what the state can hold, validated and copied on the way in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from mulligan import codec
from mulligan.document import nodes
from mulligan.errors import InvalidPath, UnstorableValue
from mulligan.model import Path

MAX_DEPTH = 100
"""Maximum nesting depth of values."""

MAX_KEY = 1024
"""Maximum length of a dictionary key in characters."""

PathLike = str | Sequence[str | int]

# What msgpack encodes natively.
_INT_RANGE = range(-(2**63), 2**64)


def parse_path(path: PathLike) -> Path:
    """Return a path as a tuple; in a string, ``~1`` and ``~0`` stand for ``/`` and ``~``.

    The empty string is the root; an empty key can only be given in a tuple.
    """
    parts = _parse_text(path) if isinstance(path, str) else _given_parts(path)
    if len(parts) > MAX_DEPTH:
        raise InvalidPath(f"A path of {len(parts)} parts is too long; {MAX_DEPTH} are allowed.")
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, str | int):
            raise InvalidPath(f"A path is made of strings and integers, not {part!r}.")
        if isinstance(part, str):
            _check_key(part)
    return parts


def format_path(path: Path) -> str:
    """Return a path as text that :func:`parse_path` reads back."""
    return "/".join(str(part).replace("~", "~0").replace("/", "~1") for part in path)


def freeze(value: Any, path: Path = ()) -> Any:
    """Return a private, canonical copy of a plain value, or raise ``UnstorableValue``."""
    if value is None or value is True or value is False:
        return value
    # Exact types first: most values have one, and comparing types is cheapest.
    kind = type(value)
    if kind is str:
        return _text(value, path)
    if kind is int:
        return _integer(value, path)
    if kind is float or kind is bytes:
        return value
    if isinstance(value, dict):
        return nodes.build_map(frozen_entries(value, path, freeze))
    if isinstance(value, list):
        return nodes.build_list(
            [freeze(v, (*path, i)) for i, v in enumerate(_shallow(value, path))]
        )
    return _unusual(value, path)


def _given_parts(path: Any) -> Path:
    """Return the parts of a path that is not a string; bytes are refused."""
    if not isinstance(path, Sequence) or isinstance(path, bytes | bytearray):
        raise InvalidPath(f"A path is a string or a tuple, not {path!r}.")
    return tuple(path)


def _parse_text(path: str) -> Path:
    if not path:
        return ()
    parts = path.split("/")
    if "" in parts:
        raise InvalidPath(f"The path {path!r} has an empty part.")
    if "~" not in path:
        return tuple(parts)
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in parts)


def _check_key(key: str) -> None:
    if len(key) > MAX_KEY:
        raise InvalidPath(f"A part of the path has {len(key)} characters; {MAX_KEY} are allowed.")
    try:
        key.encode()
    except UnicodeEncodeError as error:
        raise InvalidPath(f"A part of the path is not valid Unicode: {key!r}.") from error


def frozen_entries(
    value: dict[Any, Any], path: Path, freeze_item: Callable[[Any, Path], Any]
) -> dict[str, Any]:
    """Return the entries of a plain dictionary with checked keys and frozen values."""
    frozen: dict[str, Any] = {}
    for key, item in _shallow(value, path).items():
        if not isinstance(key, str):
            raise _refusal(path, f"has the key {key!r}; keys must be strings")
        if len(key) > MAX_KEY:
            raise _refusal(path, f"has a key of {len(key)} characters; {MAX_KEY} are allowed")
        # A plain copy: an instance of a subclass may have state of its own.
        name = _text(_content(key), (*path, key))
        frozen[name] = freeze_item(item, (*path, name))
    return frozen


def _shallow(value: Any, path: Path) -> Any:
    if len(path) >= MAX_DEPTH:
        raise UnstorableValue(
            f"The value at {format_path(path[:3])}/… nests deeper than {MAX_DEPTH} levels."
        )
    return value


def _text(value: str, path: Path) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise _refusal(path, "holds text that is not valid Unicode") from error
    return value


def _content(text: str) -> str:
    """Return the characters of a text; ``str()`` of a subclass may return something else."""
    return text if type(text) is str else str.__str__(text)


def _integer(value: int, path: Path) -> Any:
    if value in _INT_RANGE:
        return value
    try:
        return codec.big_int(value)
    except ValueError as error:
        raise _refusal(path, "is an integer of too many digits") from error


def _unusual(value: Any, path: Path) -> Any:
    """Freeze an instance of a subclass of a plain type, as long as it equals its copy."""
    if isinstance(value, datetime):
        return codec.moment(value)
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, str):
        return _text(_content(value), path)
    bases: tuple[type[Any], ...] = (int, float, bytes)
    for base in bases:
        if isinstance(value, base):
            return freeze(base(value), path)
    raise _refusal(path, f"is of type {type(value).__name__}, which cannot be stored")


def _refusal(path: Path, what: str) -> UnstorableValue:
    return UnstorableValue(f"The value at {format_path(path) or 'the root'!r} {what}.")
