"""Run every benchmark: ``python -m benchmarks [--quick] [--check] [--json FILE]``."""

from __future__ import annotations

from benchmarks import (
    append,
    busy,
    copies,
    drift,
    effects,
    harness,
    hooks,
    langgraph,
    reads,
    reopen,
    startup,
    steps,
    team,
    upkeep,
    workspace,
)

if __name__ == "__main__":
    modules = (
        startup,
        hooks,
        append,
        steps,
        effects,
        reads,
        reopen,
        workspace,
        busy,
        team,
        upkeep,
        copies,
        drift,
        langgraph,
    )
    benchmarks = (module.BENCHMARK for module in modules)
    raise SystemExit(harness.main(*benchmarks))
