"""Tables of a TOML file, checked against shapes: structs whose fields are the keys."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

import msgspec

from mulligan.config.values import duration
from mulligan.errors import InvalidName, MulliganError

T = TypeVar("T", bound=msgspec.Struct)

Place = tuple[str | int, ...]
"""Where something stands in a file: names of tables and keys, and indexes of items."""

Make = Callable[[Any, Place, type[msgspec.Struct]], Any]
"""What turns a table into its fields, or into the struct."""

_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    list[str]: "a list of texts",
}


def described(words: str, read: Callable[[Any], Any] | None = None, **bounds: Any) -> msgspec.Meta:
    """Return what a value is called in errors, and what turns it into the value that is used."""
    return msgspec.Meta(description=words, extra={"read": read}, **bounds)


Text = Annotated[str, described("a text", min_length=1)]
Count = Annotated[int, described("a whole number of 0 or more", ge=0)]
Duration = Annotated[str | int | float, described("a duration such as '30s' or '5m'", duration)]


class TableReader:
    """Checks the tables of a file, and knows on which line each key stands.

    msgspec checks the values, one by one: its errors do not name the keys of open tables such as
    ``[agents.NAME.env]``, and the line of an error is found by its whole key.
    """

    def __init__(
        self,
        text: str,
        file: Path | str,
        failure: Callable[[str], MulliganError],
        renamed: Mapping[str, str] | None = None,
    ) -> None:
        self._text = text
        self._file = file
        self._failure = failure
        self._renamed = renamed or {}

    def fields(self, table: Any, place: Place, shape: type[msgspec.Struct]) -> dict[str, Any]:
        """Return the fields of a table that a file has, each checked by its type in the shape."""
        return self._fields(table, place, shape, self.fields)

    def build(self, table: Any, place: Place, shape: type[T]) -> T:
        """Return a table as a struct; what the file does not say has the struct's defaults."""
        fields = self._fields(table, place, shape, self.build)
        for field in msgspec.structs.fields(shape):
            if field.required and field.name not in fields:
                raise self.error(place, f"the key {field.name!r} is missing")
        try:
            return shape(**fields)
        except ValueError as error:
            raise self.error(place, str(error)) from error

    def table(self, value: Any, place: Place) -> dict[str, Any]:
        """Return a value that has to be a table."""
        if not isinstance(value, dict):
            raise self.error(place, f"this is a table, not {value!r}")
        return value

    def refuse_unknown(self, table: Any, place: Place, known: Collection[str]) -> None:
        """Refuse a table with a key that is not known."""
        for key in self.table(table, place):
            if key not in known:
                raise self.error((*place, key), f"there is no such key{self._meant(key, known)}")

    def error(self, place: Place, message: str) -> MulliganError:
        """Return the error for a key: file, line, key and what is wrong."""
        from mulligan.config.lines import line_of  # slow to import

        line = line_of(self._text, place)
        end = "" if message.endswith((".", "?")) else "."
        key = ".".join(map(str, place))
        return self._failure(f"{self._file}:{line}: {key}: {message}{end}")

    def _fields(
        self, table: Any, place: Place, shape: type[msgspec.Struct], make: Make
    ) -> dict[str, Any]:
        types = {field.name: field.type for field in msgspec.structs.fields(shape)}
        self.refuse_unknown(table, place, types)
        return {
            key: self._value(value, (*place, key), types[key], make) for key, value in table.items()
        }

    def _value(self, value: Any, place: Place, type_: Any, make: Make) -> Any:
        if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
            return make(value, place, type_)
        if get_origin(type_) is dict:
            inner = get_args(type_)[1]
            table = self.table(value, place)
            return {key: self._value(v, (*place, key), inner, make) for key, v in table.items()}
        if _is_list_of_tables(type_) and isinstance(value, list):
            [inner] = get_args(type_)
            return [self._value(v, (*place, n), inner, make) for n, v in enumerate(value)]
        return self._leaf(value, place, type_)

    def _leaf(self, value: Any, place: Place, type_: Any) -> Any:
        meta = type_.__metadata__[0] if get_origin(type_) is Annotated else None
        try:
            found = msgspec.convert(value, type_)
            read = (meta.extra or {}).get("read") if meta else None
            return found if read is None else read(found)
        except msgspec.ValidationError as error:
            words = meta.description if meta else _words(type_)
            raise self.error(place, f"this is {words}, not {value!r}") from error
        except (ValueError, InvalidName) as error:
            raise self.error(place, str(error)) from error

    def _meant(self, key: str, known: Collection[str]) -> str:
        """Return the key that may have been meant, as the end of a sentence."""
        from difflib import get_close_matches  # slow to import

        new = self._renamed.get(key)
        near = [new] if new in known else get_close_matches(key, known, n=1)
        return f"; did you mean {near[0]!r}?" if near else ""


def _is_list_of_tables(type_: Any) -> bool:
    """Return whether a type is a list whose items are structs: an array of tables."""
    if get_origin(type_) is not list:
        return False
    [inner] = get_args(type_)
    return isinstance(inner, type) and issubclass(inner, msgspec.Struct)


def _words(type_: Any) -> str:
    """Return what a value of a plain type is called in errors."""
    return "a list of tables" if _is_list_of_tables(type_) else _WORDS[type_]
