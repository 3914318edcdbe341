"""Run every benchmark: ``python -m benchmarks [--quick] [--check] [--json FILE]``."""

from __future__ import annotations

from benchmarks import append, busy, harness, reopen, startup, steps, team, workspace

if __name__ == "__main__":
    modules = (startup, append, steps, reopen, workspace, busy, team)
    benchmarks = (module.BENCHMARK for module in modules)
    raise SystemExit(harness.main(*benchmarks))
