"""The examples of the page on frameworks run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.frameworks.needed import needed

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
EXAMPLES = re.findall(r"```python framework\n(.*?)```", PAGE.read_text(), re.S)


@pytest.mark.parametrize("code", EXAMPLES, ids=range(1, len(EXAMPLES) + 1))
def test_example(code: str, tmp_path: Path) -> None:
    for package in set(re.findall(r"^(?:from|import) (\w+)", code, re.M)) - {"mulligan"}:
        needed(package)
    (tmp_path / "example.py").write_text(code)  # a file: some frameworks read their tools' source
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
