"""Run every benchmark: ``python -m benchmarks [--quick] [--check] [--json FILE]``."""

from __future__ import annotations

from benchmarks import append, harness, reopen, startup, steps, team, workspace

if __name__ == "__main__":
    benchmarks = (module.BENCHMARK for module in (startup, append, steps, reopen, workspace, team))
    raise SystemExit(harness.main(*benchmarks))
