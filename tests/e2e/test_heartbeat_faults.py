"""A heartbeat file that cannot be deleted costs no agent its life."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import mulligan
from mulligan.supervisor.heartbeat import heartbeat_reader
from tests.strace import failing


def test_an_agent_is_started_and_ended_though_its_heartbeat_cannot_be_deleted(
    tmp_path: Path,
) -> None:
    with mulligan.open(tmp_path) as store:
        store.session("main")
        beats = heartbeat_reader(str(store.path), "main", "agent", 1)
    beats.file.write_text("left over")
    command = [sys.executable, "-m", "mulligan", "--store", str(tmp_path), "run", "--no-files"]
    agent = ["--", sys.executable, "-c", "print('done its work')"]
    done = subprocess.run(
        failing([*command, *agent], "unlink,unlinkat:error=EIO", only=beats.file),
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "done its work" in done.stdout
    assert beats.file.exists()


def test_what_a_process_before_left_in_the_file_is_no_sign_of_life(tmp_path: Path) -> None:
    beats = heartbeat_reader(str(tmp_path), "main", "agent", 1)
    beats.file.mkdir()  # cannot be unlinked
    again = heartbeat_reader(str(tmp_path), "main", "agent", 1)
    assert list(again.look("agent")) == []
    again.forget()
    assert beats.file.is_dir()
