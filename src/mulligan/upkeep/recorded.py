"""How the problems of a drill or a check are recorded on the timeline."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from mulligan.model import Problem

MAX_RECORDED_PROBLEMS = 20
"""How many problems a record names; the result itself has all of them."""

MAX_RECORDED_CHARACTERS = 500
"""How much of a problem's detail a record keeps."""


class HasProblems(Protocol):
    """A result that counts its problems and names all or the first of them."""

    @property
    def problem_count(self) -> int:
        """How many there are."""
        ...

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All, or the first ones."""
        ...


def first_problem(result: HasProblems) -> str:
    """Return what a failed result found, in one phrase."""
    problem = result.problems[0]
    more = f", and {result.problem_count - 1} more" if result.problem_count > 1 else ""
    return f"{problem.what} {problem.where}: {problem.detail.rstrip('.')}{more}"


def recorded_problems(problems: tuple[Problem, ...]) -> tuple[Problem, ...]:
    """Return the first problems, none of them too long."""
    return tuple(
        Problem(problem.what, problem.where, problem.detail[:MAX_RECORDED_CHARACTERS])
        for problem in problems[:MAX_RECORDED_PROBLEMS]
    )


def plain(result: msgspec.Struct) -> dict[str, Any]:
    """Return a result as values that an event can hold."""
    made: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(result))
    return made
