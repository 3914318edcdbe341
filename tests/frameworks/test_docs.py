"""The examples of the guides to frameworks run as they stand."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.frameworks.needed import needed

DOCS = Path(__file__).parents[2] / "docs"

EXAMPLES = [
    pytest.param(code, id=f"{page.stem}-{number}")
    for page in sorted(DOCS.glob("guide-*.md"))
    for number, code in enumerate(
        re.findall(r"```python framework\n(.*?)```", page.read_text(), re.S)
    )
]


@pytest.mark.parametrize("code", EXAMPLES)
def test_example(code: str, tmp_path: Path) -> None:
    for package in set(re.findall(r"^(?:from|import) (\w+)", code, re.M)) - {"mulligan"}:
        needed(package)
    run_example(code, tmp_path)


def run_example(code: str, place: Path) -> None:
    (place / "example.py").write_text(code)  # a file: some frameworks read their tools' source
    run([sys.executable, "example.py"], place)


def run(command: list[str], place: Path) -> str:
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def test_the_commands_of_the_overview_show_what_the_first_example_stored(tmp_path: Path) -> None:
    needed("agents")
    run_example(next(p.values[0] for p in EXAMPLES if p.id == "guide-openai-agents-0"), tmp_path)
    overview = (DOCS / "integrations.md").read_text()
    [block] = re.findall(r"```sh framework\n(.*?)```", overview, re.S)
    shown = [
        run([sys.executable, "-m", *shlex.split(line)], tmp_path) for line in block.splitlines()
    ]
    assert "openai+order-17" in shown[0]
    assert all(shown), "each of them prints something"
    check = (
        "import asyncio\nfrom mulligan.integrations.openai_agents import MulliganSession\n"
        "fork = MulliganSession('order-19', '.agent-store')\n"
        "print(len(asyncio.run(fork.get_items())))"
    )
    assert run([sys.executable, "-c", check], tmp_path) == "3\n"


def test_the_undo_of_the_guide_to_langgraph_is_run_in_the_workspace(tmp_path: Path) -> None:
    needed("langgraph")
    run_example(next(p.values[0] for p in EXAMPLES if p.id == "guide-langgraph-1"), tmp_path)
    guide = (DOCS / "guide-langgraph.md").read_text()
    [undo] = re.findall(r"`(mulligan [^`]*undo)`", guide)
    run([sys.executable, "-m", *shlex.split(undo)], tmp_path / "project")
    assert (tmp_path / "project/draft.txt").read_text() == "draft 2"


TESTED = {
    "Claude Agent SDK": ("claude-agent-sdk", ["claude_agent_sdk/test_store.py"]),
    "OpenAI Agents SDK": (
        "openai-agents",
        ["openai_agents/test_session.py", "openai_agents/test_runs.py"],
    ),
    "pydantic-ai": ("pydantic-ai-slim", ["pydantic_ai/test_store.py"]),
    "Google ADK": ("google-adk", ["google_adk/test_service.py"]),
    "Agent Framework": ("agent-framework-core", ["agent_framework/test_storage.py"]),
    "smolagents": ("smolagents", ["smolagents/test_steps.py"]),
    "OpenTelemetry": (
        "opentelemetry-sdk",
        ["otel/test_spans.py", "otel/test_otlp.py", "otel/test_launcher.py"],
    ),
}
"""The rows of the overview with a version and a count: the package, and our own tests with it."""


def test_the_overview_has_the_versions_and_counts_of_these_tests() -> None:
    needed("agents")
    place = Path(__file__).parent
    files = [str(place / one) for _, ours in TESTED.values() for one in ours]
    listed = run([sys.executable, "-m", "pytest", "--collect-only", "-q", *files], DOCS.parent)
    counts = dict(re.findall(r"^tests/frameworks/(\S+): (\d+)$", listed, re.M))
    overview = (DOCS / "integrations.md").read_text()
    rows = re.findall(r"^\| ([A-Z]?[A-Za-z -]+?) (\d[\d.]+).*\| (\d+): ", overview, re.M)
    said = {name: (found, int(count)) for name, found, count in rows if name in TESTED}
    assert said == {
        name: (version(package), sum(int(counts[one]) for one in ours))
        for name, (package, ours) in TESTED.items()
    }
