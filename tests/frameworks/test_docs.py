"""The examples of the guides to frameworks run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.frameworks.needed import needed

EXAMPLES = [
    pytest.param(code, id=f"{page.stem}-{number}")
    for page in sorted((Path(__file__).parents[2] / "docs").glob("guide-*.md"))
    for number, code in enumerate(
        re.findall(r"```python framework\n(.*?)```", page.read_text(), re.S)
    )
]


@pytest.mark.parametrize("code", EXAMPLES)
def test_example(code: str, tmp_path: Path) -> None:
    for package in set(re.findall(r"^(?:from|import) (\w+)", code, re.M)) - {"mulligan"}:
        needed(package)
    (tmp_path / "example.py").write_text(code)  # a file: some frameworks read their tools' source
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
