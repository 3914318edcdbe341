"""Tables of TOML files: what is read, and the errors that say where."""

from __future__ import annotations

import tomllib

import msgspec
import pytest

from mulligan.config.tables import Count, Duration, TableReader
from mulligan.errors import InvalidConfig


class Item(msgspec.Struct):
    run: list[str]
    times: int = 1


class Shape(msgspec.Struct):
    count: Count = 3
    delay: Duration = 1.0
    ratio: float = 0.5
    on: bool = False
    items: list[Item] = []

    def __post_init__(self) -> None:
        if self.on and not self.count:
            raise ValueError("on needs a count")


def build(text: str) -> Shape:
    return TableReader(text, "x.toml", InvalidConfig).build(tomllib.loads(text), (), Shape)


def test_a_table_becomes_a_struct() -> None:
    text = 'delay = "2m"\nratio = 1\n[[items]]\nrun = ["a"]\n[[items]]\nrun = []\ntimes = 2\n'
    made = build(text)
    assert (made.count, made.delay, made.ratio, made.on) == (3, 120, 1, False)
    assert made.items == [Item(["a"]), Item([], 2)]


@pytest.mark.parametrize(
    ("text", "where", "problem"),
    [
        ("ratio = 1\ncuont = 1", "2: cuont", "no such key; did you mean 'count'?"),
        ("count = -1", "1: count", "a whole number of 0 or more, not -1"),
        ("\ndelay = '1w'", "2: delay", "'1w' is not a duration"),
        ("ratio = 'x'", "1: ratio", "this is a number, not 'x'"),
        ("on = 1", "1: on", "this is true or false, not 1"),
        ("items = 1", "1: items", "this is a list of tables, not 1"),
        ("items = [1]", "1: items.0", "this is a table, not 1"),
        ("[[items]]\nrun = []\n[[items]]\nrun = 1", "4: items.1.run", "this is a list of texts"),
        ("[[items]]\nrun = []\n[[items]]\ntimes = 1", "3: items.1", "the key 'run' is missing"),
        ("[[items]]\nrun = []\ntimes = true", "3: items.0.times", "a whole number, not True"),
    ],
)
def test_an_error_names_file_line_and_key(text: str, where: str, problem: str) -> None:
    with pytest.raises(InvalidConfig) as failed:
        build(text)
    assert str(failed.value).startswith(f"x.toml:{where}: ")
    assert problem in str(failed.value)


def test_what_the_struct_itself_refuses_is_an_error_of_the_table() -> None:
    with pytest.raises(InvalidConfig, match="on needs a count"):
        build("on = true\ncount = 0")
