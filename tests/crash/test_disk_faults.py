"""One I/O error costs one write: the process goes on, and nothing acknowledged is lost."""

from __future__ import annotations

import json
import subprocess
import textwrap
from pathlib import Path

import pytest

import mulligan
from tests.strace import failing_python

WRITER = """
    import json, sys, threading
    import mulligan
    from mulligan.errors import StoreUnwritable

    store = mulligan.open(sys.argv[1])
    session = store.session("run")
    stop = threading.Event()
    read = []

    def reads():
        while not stop.is_set():
            read.append(session.state.get("count", 0))

    thread = threading.Thread(target=reads)
    thread.start()
    kept, refused = [], []
    for number in range(1, 13):
        try:
            session.state.append("values", [number, sys.argv[2] * number])
            session.state.set("count", number)
            kept.append(number)
        except StoreUnwritable as error:
            assert error.retryable
            refused.append(str(error))
    stop.set()
    thread.join()
    assert read == sorted(read), read
    print(json.dumps([kept, refused, store.verify().ok]))
    store.close()
"""

JOURNAL = "journal/data.mdb"
PACK = "packs/00000001.pack"


@pytest.mark.parametrize(
    ("file", "fault", "value"),
    [
        (JOURNAL, "pwrite64:error=EIO:when=9", ""),
        (JOURNAL, "pwrite64:error=EIO:when=10", ""),
        (JOURNAL, "pwrite64:error=EIO:when=11", ""),
        (JOURNAL, "pwrite64:error=EIO:when=12+7", ""),
        (JOURNAL, "fdatasync:error=EIO:when=4", ""),
        (JOURNAL, "fdatasync:error=EIO:when=3+4", ""),
        (PACK, "pwrite64:error=EIO:when=5", "x" * 9_000),
        (PACK, "fdatasync:error=EIO:when=3", "x" * 9_000),
    ],
)
def test_a_process_goes_on_after_an_io_error(
    tmp_path: Path, file: str, fault: str, value: str
) -> None:
    with mulligan.open(tmp_path) as store:
        store.session("run").state.set("large", "y" * 9_000)
    code = textwrap.dedent(WRITER)
    command = failing_python(code, fault, only=tmp_path / ".mulligan" / file)
    done = subprocess.run(
        [*command, str(tmp_path), value], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    kept, refused, is_sound = json.loads(done.stdout)
    assert is_sound
    assert refused
    assert len(refused) < 8
    assert all("Input/output error" in message for message in refused)
    with mulligan.open(tmp_path) as store:
        session = store.session("run")
        values = [number for number, _ in session.state.get("values")]
        assert set(kept) <= set(values)
        assert values == sorted(values)
        assert session.state.get("count") == kept[-1]
        assert store.verify().ok


def test_a_pack_whose_sync_failed_is_not_written_to_again(tmp_path: Path) -> None:
    with mulligan.open(tmp_path) as store:
        store.session("run").state.set("large", "y" * 9_000)
    file = tmp_path / ".mulligan" / PACK
    length = file.stat().st_size
    code, fault = textwrap.dedent(WRITER), "fdatasync:error=EIO:when=1"
    command = failing_python(code, fault, only=file)
    done = subprocess.run(
        [*command, str(tmp_path), "x" * 9_000], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    kept, refused, is_sound = json.loads(done.stdout)
    assert (len(kept), len(refused), is_sound) == (11, 1, True)
    assert (tmp_path / ".mulligan/packs/00000002.pack").exists()
    assert file.stat().st_size > length  # what it got before the sync failed, and no more
    with mulligan.open(tmp_path) as store:
        assert store.session("run").state.get("large") == "y" * 9_000
        assert store.verify().ok
