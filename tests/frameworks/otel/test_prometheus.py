"""``mulligan status --prometheus``, read by the parser of Prometheus' own Python client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import mulligan
from tests.frameworks.needed import needed

parser = needed("prometheus_client.parser")

ODD = 'a"b\\c'


def printed(place: Path) -> str:
    words = [sys.executable, "-m", "mulligan", "status", "--prometheus"]
    return subprocess.run(words, cwd=place, check=True, capture_output=True, text=True).stdout


def test_the_client_of_prometheus_reads_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 1000)
    with mulligan.open(tmp_path) as store:
        session = store.session("main", workspace=tmp_path)
        session.checkpoint()
        store.session(ODD)
    found = {
        family.name: family for family in parser.text_string_to_metric_families(printed(tmp_path))
    }
    assert all(name.startswith("mulligan_") for name in found)
    assert all(family.documentation for family in found.values())
    assert {family.type for family in found.values()} == {"gauge", "counter"}

    def value(family: str, **labels: str) -> float:
        [sample] = [s for s in found[family].samples if s.labels == labels]
        return float(sample.value)

    assert value("mulligan_sessions") == 2
    assert value("mulligan_store_size_bytes") > 1000
    assert value("mulligan_session_events", session=ODD) >= 1
    assert value("mulligan_checkpoint_duration_seconds", session="main") > 0
