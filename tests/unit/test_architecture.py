"""The walks of ARCHITECTURE.md name functions that exist."""

from __future__ import annotations

import re
from functools import reduce
from importlib import import_module
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "ARCHITECTURE.md"
STEPS = re.findall(r"^([a-z_.]+):([A-Za-z_.]+)", PAGE.read_text(), re.M)


def test_there_are_six_walks() -> None:
    assert len(re.findall(r"^\*\*One \w+", PAGE.read_text(), re.M)) == 6
    assert len(STEPS) > 30


@pytest.mark.parametrize(("module", "name"), STEPS, ids=lambda part: part)
def test_a_step_of_a_walk_exists(module: str, name: str) -> None:
    assert callable(reduce(getattr, name.split("."), import_module(f"mulligan.{module}")))
