"""An adapter whose framework is not installed says which extra of Mulligan has it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mulligan.integrations.missing_extra import framework

ROOT = Path(__file__).parents[3]

ADAPTERS = {
    "agent_framework": ("agent-framework", "agent_framework"),
    "claude_agent_sdk": ("claude-agent-sdk", "claude_agent_sdk"),
    "google_adk": ("google-adk", "google"),
    "langgraph": ("langgraph", "langgraph"),
    "openai_agents": ("openai-agents", "agents"),
    "otel": ("otel", "opentelemetry"),
    "pydantic_ai": ("pydantic-ai", "pydantic_ai"),
    "smolagents": ("smolagents", "smolagents"),
}
"""The modules of the adapters: their extra, and the package that is missing without it."""

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def last_line(code: str, *arguments: str, cwd: Path) -> str:
    """The last line that a program writes that fails."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    return done.stderr.splitlines()[-1]


IMPORT = """
import importlib, sys
adapter, missing = sys.argv[1:]
sys.modules[missing] = None  # where it is installed, this import fails as if it were not
importlib.import_module("mulligan.integrations." + adapter)
"""


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter_names_its_extra(adapter: str, tmp_path: Path) -> None:
    extra, package = ADAPTERS[adapter]
    line = last_line(IMPORT, adapter, package, cwd=tmp_path)
    assert line.startswith("ModuleNotFoundError: ")
    assert package in line
    assert f"extra '{extra}'" in line
    assert f"pip install '.[{extra}]'" in line
    assert extra in EXTRAS


def test_a_directory_with_the_name_of_the_framework_is_not_the_framework(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no_framework").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with (
        pytest.raises(ModuleNotFoundError, match="extra 'none'"),
        framework("none", "no_framework"),
    ):
        from no_framework import Agent  # noqa: F401


def test_a_module_that_a_framework_lacks_itself_is_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_framework.py").write_text("import what_it_needs_itself")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError) as raised, framework("broken", "broken_framework"):
        import broken_framework  # noqa: F401
    assert raised.value.name == "what_it_needs_itself"
    assert "extra" not in str(raised.value)


def test_a_name_that_another_version_of_a_framework_lacks_is_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "older_framework.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    with (
        pytest.raises(ImportError, match="cannot import name 'Agent'"),
        framework("older", "older_framework"),
    ):
        from older_framework import Agent  # noqa: F401


def test_the_error_names_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "no_framework", None)
    with pytest.raises(ModuleNotFoundError) as raised, framework("none", "no_framework"):
        import no_framework  # noqa: F401
    assert raised.value.name == "no_framework"
    assert raised.value.__cause__ is None
