"""Objects of programs as plain values of the state, and back, without pickle.

Plain values stay as they are, lists and dictionaries are walked into, so that a list that grew
shares what it had. Everything else is a dictionary with the key ``mulligan:type``. An object is its
class and its attributes. To read one, its class must be loaded already, and be allowed; it is made
without a call of its constructor, nor of anything else of its own.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path, PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any
from uuid import UUID

import msgspec

from mulligan.document.values import MAX_KEY
from mulligan.errors import UnstorableValue

TAG = "mulligan:type"
"""The key that says what a dictionary stands for."""

_INTEGERS = range(-(2**63), 2**64)

MAX_LEVELS = 60
"""How deep plain values nest in each other; deeper ones are packed. The state has a limit of 100,
of which the place of a value takes some."""

_TEXTS: dict[type, tuple[str, Callable[[Any], str], Callable[[str], Any]]] = {
    datetime: ("datetime", datetime.isoformat, datetime.fromisoformat),
    date: ("date", date.isoformat, date.fromisoformat),
    time: ("time", time.isoformat, time.fromisoformat),
    UUID: ("uuid", str, UUID),
    Decimal: ("decimal", str, Decimal),
    complex: ("complex", str, complex),
    # A path of the system; on another one, it is a path there.
    PosixPath: ("path", str, Path),
    WindowsPath: ("path", str, Path),
    PurePosixPath: ("pure_posix_path", str, PurePosixPath),
    PureWindowsPath: ("pure_windows_path", str, PureWindowsPath),
    # In hexadecimal, which has no limit of digits and takes time in proportion to them.
    int: ("int", hex, lambda text: int(text, 0)),
}
"""Values that are stored as text: their tag, and the way there and back."""

_FROM_TEXT = {tag: back for tag, _, back in _TEXTS.values()}

_ITERABLES: dict[type, tuple[str, Callable[[Iterable[Any]], Any]]] = {
    tuple: ("tuple", tuple),
    set: ("set", set),
    frozenset: ("frozenset", frozenset),
    deque: ("deque", deque),
    bytearray: ("bytearray", lambda items: bytearray(b"".join(items))),
}
_FROM_ITEMS = dict(_ITERABLES.values())

_MAPPINGS: dict[type, tuple[str, Callable[[Iterable[Any]], Any]]] = {
    dict: ("dict", dict),
    OrderedDict: ("ordered_dict", OrderedDict),
    Counter: ("counter", lambda pairs: Counter(dict(pairs))),
}
_FROM_PAIRS = dict(_MAPPINGS.values())


class TypedValues:
    """Writes and reads objects; ``allowed`` are the classes that may be read.

    Each is ``module:name``. None allows every class of the modules that are loaded; classes of the
    modules whose names start with one of ``trusted`` are always allowed. The state sorts the keys
    of a dictionary; with ``keeps_order``, the order of others is written beside them.
    """

    def __init__(
        self,
        allowed: Iterable[str] | None = None,
        trusted: tuple[str, ...] = (),
        *,
        keeps_order: bool = False,
    ) -> None:
        self._allowed = None if allowed is None else frozenset(allowed)
        self._trusted = trusted
        self._keeps_order = keeps_order

    def to_plain(self, value: Any) -> Any:
        """Return a value as the state can hold it, or raise ``UnstorableValue``."""
        try:
            return self._written(value, ())
        except RecursionError as error:
            raise UnstorableValue(f"The value nests too deep: {type(value).__name__}.") from error

    def from_plain(self, value: Any) -> Any:
        """Return the value that was written, or raise ``UnstorableValue``."""
        try:
            return self._loaded(value)
        except RecursionError as error:
            # It was written with more of the stack left, or in a program with a higher limit.
            raise UnstorableValue("The value nests too deep to be read here.") from error

    def _loaded(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._loaded(item) for item in value]
        if not isinstance(value, dict):
            return value
        if TAG not in value:
            return {key: self._loaded(item) for key, item in value.items()}
        return self._read(value[TAG], value)

    def _written(self, value: Any, above: tuple[int, ...]) -> Any:
        """Return a value as plain values; ``above`` has the id of its container at each level."""
        kind = type(value)
        if value is None or kind in (bool, float, bytes):
            return value
        if kind is str:
            return value if _is_unicode(value) else {TAG: "text", "bytes": _encoded(value)}
        if kind is int and value in _INTEGERS:
            return value
        if kind in _TEXTS:
            tag, text, _ = _TEXTS[kind]
            return {TAG: tag, "text": self._written(text(value), above)}
        if id(value) in above:
            raise UnstorableValue(f"A {kind.__name__} contains itself.")
        if len(above) >= MAX_LEVELS:
            return {TAG: "packed", "bytes": msgspec.msgpack.encode(self._written(value, ()))}
        inside = (*above, id(value))
        if kind is list:
            return [self._written(item, inside) for item in value]
        if kind is dict and TAG not in value and all(map(_is_key, value)):
            if self._keeps_order and list(value) != sorted(value):
                return self._in_order(value, (*inside, id(value)))
            return {key: self._written(item, inside) for key, item in value.items()}
        # Its items are two or three levels below it.
        return self._tagged(value, kind, (*inside, id(value), id(value)))

    def _in_order(self, value: dict[str, Any], inside: tuple[int, ...]) -> dict[str, Any]:
        """Return a dictionary and its keys in order; in pairs, a long list would be replaced."""
        items = {key: self._written(item, inside) for key, item in value.items()}
        return {TAG: "in_order", "keys": [*value], "items": items}

    def _tagged(self, value: Any, kind: type, inside: tuple[int, ...]) -> dict[str, Any]:
        def written(item: Any) -> Any:
            return self._written(item, inside)

        if kind in _ITERABLES:
            items = [bytes(value)] if kind is bytearray else value
            return {TAG: _ITERABLES[kind][0], "items": [written(item) for item in items]}
        if kind in _MAPPINGS:
            pairs = [[written(key), written(item)] for key, item in value.items()]
            return {TAG: _MAPPINGS[kind][0], "items": pairs}
        if kind is defaultdict:
            pairs = [[written(key), written(item)] for key, item in value.items()]
            return {TAG: "defaultdict", "items": pairs, "factory": written(value.default_factory)}
        if kind is timedelta:
            return {TAG: "timedelta", "items": [value.days, value.seconds, value.microseconds]}
        if kind is timezone:
            return {TAG: "timezone", "offset": written(value.utcoffset(None))}
        if isinstance(value, type):
            return {TAG: "type", "type": _key(value)}
        if isinstance(value, Enum):
            if value.name not in type(value).__members__:
                raise UnstorableValue(f"{value!r} is not a member of its class.")
            return {TAG: "enum", "type": _key(kind), "name": value.name}
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            items = [written(item) for item in value]
            return {TAG: "named_tuple", "type": _key(kind), "items": items}
        return self._object(value, kind, written)

    def _object(self, value: Any, kind: type, written: Callable[[Any], Any]) -> dict[str, Any]:
        if isinstance(value, BaseException):
            args = [written(item) for item in value.args]
            state = {key: written(item) for key, item in vars(value).items()}
            return {TAG: "error", "type": _key(kind), "args": args, "attributes": state}
        if not _has_plain_attributes(kind):
            raise UnstorableValue(
                f"A {kind.__module__}.{kind.__qualname__} cannot be stored.",
                hint="Use plain values, dataclasses, pydantic models or objects with attributes.",
            )
        state = {name: written(item) for name, item in _attributes(value).items()}
        return {TAG: "object", "type": _key(kind), "attributes": state}

    def _read(self, tag: str, value: dict[str, Any]) -> Any:
        if tag in _FROM_TEXT:
            return _FROM_TEXT[tag](self._loaded(value["text"]))
        if tag in _FROM_ITEMS:
            return _FROM_ITEMS[tag]([self._loaded(item) for item in value["items"]])
        if tag in _FROM_PAIRS:
            return _FROM_PAIRS[tag](self._pairs(value))
        match tag:
            case "text":
                return value["bytes"].decode("utf-8", "surrogatepass")
            case "in_order":
                return {key: self._loaded(value["items"][key]) for key in value["keys"]}
            case "packed":
                return self._loaded(msgspec.msgpack.decode(value["bytes"]))
            case "defaultdict":
                return defaultdict(self._loaded(value["factory"]), self._pairs(value))
            case "timedelta":
                return timedelta(*value["items"])
            case "timezone":
                return timezone(self._loaded(value["offset"]))
            case "type":
                return self._class(value["type"])
            case "enum":
                found = self._class(value["type"])
                if issubclass(found, Enum) and value["name"] in found.__members__:
                    return found[value["name"]]
                raise UnstorableValue(f"{value['type']} has no member {value['name']!r}.")
            case "named_tuple":
                found = self._class(value["type"])
                if issubclass(found, tuple):
                    return tuple.__new__(found, [self._loaded(v) for v in value["items"]])
                raise UnstorableValue(f"{value['type']} is not a tuple.")
            case "object" | "error":
                return self._made(value)
        raise UnstorableValue(f"This version cannot read values of the kind {tag!r}.")

    def _pairs(self, value: dict[str, Any]) -> list[tuple[Any, Any]]:
        return [(self._loaded(key), self._loaded(item)) for key, item in value["items"]]

    def _made(self, value: dict[str, Any]) -> Any:
        found = self._class(value["type"])
        state = {key: self._loaded(item) for key, item in value["attributes"].items()}
        if value[TAG] == "error":
            if not issubclass(found, BaseException):
                raise UnstorableValue(f"{value['type']} is no exception.")
            made = found.__new__(found, *(self._loaded(item) for item in value["args"]))
        elif _has_plain_attributes(found):
            made = object.__new__(found)
        else:
            raise UnstorableValue(f"A {value['type']} cannot be made of its attributes.")
        for name, item in state.items():
            object.__setattr__(made, name, item)
        return made

    def _class(self, key: str) -> type[Any]:
        """Return a class that is loaded and allowed; nothing is imported for it."""
        module, _, name = key.partition(":")
        is_trusted = module.startswith(self._trusted) if self._trusted else False
        if self._allowed is not None and not is_trusted and key not in self._allowed:
            raise UnstorableValue(
                f"Values of the class {key} are not allowed here.",
                hint="Nothing was made of it. Add it to the allowed classes.",
            )
        found: Any = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        if not isinstance(found, type):
            raise UnstorableValue(
                f"There is no class {key}.",
                hint="Import its module before the value is read.",
            )
        return found


def _is_unicode(text: str) -> bool:
    """Whether a text has no half of a surrogate pair, which UTF-8 cannot hold."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _is_key(key: Any) -> bool:
    """Whether a dictionary of the state can have a key."""
    return type(key) is str and len(key) <= MAX_KEY and _is_unicode(key)


def _key(kind: type) -> str:
    key = f"{kind.__module__}:{kind.__qualname__}"
    if "<" in key:
        raise UnstorableValue(
            f"The class {kind.__qualname__} is local to a function.",
            hint="Define it in a module, so that it is found again.",
        )
    return key


def _has_plain_attributes(kind: type) -> bool:
    """Whether objects of a class are nothing but their attributes."""
    if issubclass(kind, BaseException | type) or kind.__module__ == "builtins":
        return False
    if hasattr(kind, "__del__"):  # it has something to release, which its attributes do not hold
        return False
    is_plain = kind.__new__ is object.__new__ or dataclasses.is_dataclass(kind)
    has_default_state = kind.__reduce_ex__ is object.__reduce_ex__ and (
        kind.__reduce__ is object.__reduce__
    )
    return has_default_state and (is_plain or _no_layout_of_its_own(kind))


def _no_layout_of_its_own(kind: type) -> bool:
    """Whether no class above is one in C, whose objects have more than attributes."""
    try:
        object.__new__(kind)
    except TypeError:
        return False
    return True


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, those in slots included."""
    found = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name in ("__dict__", "__weakref__"):
                continue
            mangled = f"_{kind.__name__.lstrip('_')}{name}" if _is_private(name) else name
            if hasattr(value, mangled):
                found[mangled] = getattr(value, mangled)
    return found


def _is_private(name: str) -> bool:
    return name.startswith("__") and not name.endswith("__")
