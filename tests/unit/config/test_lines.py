"""The line of a key in a TOML text."""

from __future__ import annotations

from mulligan.config.lines import line_of


def test_lines_of_quoted_and_dotted_keys() -> None:
    text = 'a."b c".d = 1\n["x.y".z] # why\n\n"k=1" = 2\n'
    assert line_of(text, ("a", "b c", "d")) == 1
    assert line_of(text, ("x.y", "z", "k=1")) in (2, 4)
    assert line_of(text, ("x.y", "z", "other")) == 2
    assert line_of(text, ("nowhere",)) == 1


def test_lines_of_items_of_an_array_of_tables() -> None:
    text = "[[a.b]]\nx = 1\n[a.b.c]\ny = 1\n[[a.b]]\nx = 2\n[a.b.c]\ny = 2\n"
    assert line_of(text, ("a", "b", 0, "x")) == 2
    assert line_of(text, ("a", "b", 1, "x")) == 6
    assert line_of(text, ("a", "b", 0, "c", "y")) == 4
    assert line_of(text, ("a", "b", 1, "c", "y")) == 8
    assert line_of(text, ("a", "b", 1, "z")) == 5
