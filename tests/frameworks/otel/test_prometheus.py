"""``mulligan status --prometheus``, read by Prometheus: its Python client, promtool, the server.

The programs of Prometheus are found on the path, or in the directory that
``MULLIGAN_TEST_PROMETHEUS`` names; ``make test-frameworks`` takes them from Debian's package.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import mulligan
from tests.frameworks.needed import needed

parser = needed("prometheus_client.parser")

ODD = 'a"b\\c'

HANG_SECONDS = 60


def program(name: str) -> str:
    """Return a program of Prometheus, or skip the test that asks for it."""
    found = shutil.which(name, path=os.environ.get("MULLIGAN_TEST_PROMETHEUS"))
    found = found or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} IS MISSING: install Debian's package prometheus")
    return found


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


@pytest.fixture
def text(tmp_path: Path) -> str:
    """The metrics of a store that has everything which has a metric."""
    (tmp_path / "a.txt").write_text("x" * 1000)
    with mulligan.open(tmp_path) as store:
        session = store.session("main", workspace=tmp_path)
        session.checkpoint()
        record = {"restarts": 2, "status": "running", "pid": 1}
        session.internal.state.set("agents/coder", record)
        store.session(ODD)
    return printed(tmp_path)


def test_promtool_finds_nothing_wrong(text: str) -> None:
    words = [program("promtool"), "check", "metrics"]
    done = subprocess.run(words, input=text, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_server_of_prometheus_scrapes_it(text: str, tmp_path: Path) -> None:
    with serving(text) as target, scraping(target, tmp_path / "server") as address:
        assert value(address, "mulligan_sessions") == "2"
        assert float(value(address, "mulligan_store_size_bytes")) > 1000
        assert value(address, "mulligan_session_events_total", session=ODD) == "1"
        restarts = value(address, "mulligan_agent_restarts_total", session="main", agent="coder")
        assert restarts == "2"


@contextmanager
def serving(text: str) -> Iterator[str]:
    """Serve a text as the exporter of a machine does; yields the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = text.encode()
            self.send_response(200)
            self.send_header("content-type", "text/plain; version=0.0.4")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def scraping(target: str, directory: Path) -> Iterator[str]:
    """Run a server of Prometheus that reads a target; yields its address."""
    directory.mkdir()
    job = {"job_name": "mulligan", "static_configs": [{"targets": [target]}]}
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}
    (directory / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    words = [
        program("prometheus"),
        f"--config.file={directory}/prometheus.yml",
        f"--storage.tsdb.path={directory}/data",
        f"--web.listen-address={address}",
    ]
    log = (directory / "log").open("w")
    with log, subprocess.Popen(words, stdout=log, stderr=log) as server:
        try:
            yield f"http://{address}"
        finally:
            server.kill()


def value(address: str, name: str, **labels: str) -> str:
    """Return the value of a metric, as soon as it was scraped."""
    wanted = ",".join(f"{key}={json.dumps(label)}" for key, label in labels.items())
    query = urllib.parse.urlencode({"query": f"{name}{{{wanted}}}"})
    until = time.monotonic() + HANG_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"{address}/api/v1/query?{query}") as answer:
                found = json.load(answer)["data"]["result"]
        except (urllib.error.URLError, ConnectionError):
            found = []  # it has not started yet
        if found:
            return str(found[0]["value"][1])
        assert time.monotonic() < until, f"{name} was not scraped"
        threading.Event().wait(0.05)
