"""Small JSON files are read and written as the standard library does, mostly without it."""

from __future__ import annotations

import json
import subprocess
import sys

import msgspec
import pytest

from mulligan.locate.small_json import decoded, encoded


class Content(msgspec.Struct):
    path: str
    number: int = 0


VALUES = ["/plain path/x", "/ü", "/\udcff", "/\x7f", "/a\\b", '"', "\n", "", "/𝄞"]


@pytest.mark.parametrize("path", VALUES)
def test_the_bytes_are_those_of_the_standard_library(path: str) -> None:
    value = [{"path": path, "number": 2**63, "none": None, "flag": True}]
    assert encoded(value) == json.dumps(value).encode()


@pytest.mark.parametrize("path", VALUES)
def test_every_path_is_read_again(path: str) -> None:
    data = json.dumps({"path": path, "number": 3, "later": []}).encode()
    assert decoded(data, Content) == Content(path, 3)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"path": 1}', b"\xff", b"[" * 100_000])
def test_garbled_content_is_refused(data: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        decoded(data, Content)


def test_a_usual_path_needs_no_further_import() -> None:
    script = (
        "import sys; from mulligan.locate.small_json import decoded, encoded;"
        "assert decoded(encoded(['/a b']), list[str]) == ['/a b']; assert 'json' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
