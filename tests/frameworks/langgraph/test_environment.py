"""The environment of the frameworks' tests has what LangGraph's suites need."""

from __future__ import annotations

from importlib.metadata import version

from tests.frameworks.needed import needed

needed("langgraph.checkpoint.conformance")


def test_the_suite_is_of_a_version_with_all_capabilities() -> None:
    from langgraph.checkpoint.conformance.capabilities import ALL_CAPABILITIES

    assert len(ALL_CAPABILITIES) >= 8, version("langgraph-checkpoint-conformance")
