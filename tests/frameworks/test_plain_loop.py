"""The loop of the guide is killed anywhere and started again unchanged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import mulligan
from tests.frameworks.killed import Program

PAGE = Path(__file__).parents[2] / "docs" / "guide-loops.md"
[LOOP] = re.findall(r"```python loop\n(.*?)```", PAGE.read_text(), re.S)

STAND_IN = '''
"""Stands for litellm: answers by the number of results that it sees."""
import asyncio, json
from pathlib import Path
from types import SimpleNamespace


async def acompletion(model, messages, tools):
    results = sum(m["role"] == "tool" for m in messages)
    questions = sum(m["role"] == "user" for m in messages)
    with Path("log.txt").open("a") as file:
        file.write(f"model {results} of {questions} questions\\n")
    if results == WAIT:
        Path("started").touch()
        while not Path("go").exists():
            await asyncio.sleep(0.01)
    calls = [
        {"id": f"call_{results}{n}", "type": "function",
         "function": {"name": "charge", "arguments": json.dumps({"amount": results + n})}}
        for n in range(2)
    ]
    message = {"role": "assistant", "content": "done"} if results >= 4 else {
        "role": "assistant", "tool_calls": calls}
    said = SimpleNamespace(model_dump=lambda exclude_none: message)
    return SimpleNamespace(choices=[SimpleNamespace(message=said)])
'''


@pytest.mark.parametrize("wait", [0, 2, 4])
def test_it_repeats_nothing_that_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: int
) -> None:
    (tmp_path / "litellm.py").write_text(STAND_IN.replace("WAIT", str(wait)))
    (tmp_path / "loop.py").write_text(LOOP)
    monkeypatch.chdir(tmp_path)
    Program(tmp_path / "loop.py").kill_when(tmp_path / "started")
    (tmp_path / "go").touch()
    assert Program(tmp_path / "loop.py").output() == "done\n"
    asked = (tmp_path / "log.txt").read_text().splitlines()
    expected = [f"model {n} of 1 questions" for n in (0, 2, 4) for _ in range(1 + (n == wait))]
    assert asked == expected
    assert (tmp_path / "charges.txt").read_text().split() == ["0", "1", "2", "3"]
    with mulligan.open(tmp_path) as store:
        calls = store.session("order-17").tools.list(name="charge")
    assert [call.status for call in calls] == ["returned"] * 4
