"""Text files that people write: their encoding, and what is said about another one."""

from __future__ import annotations

from pathlib import Path

import pytest

import mulligan
from mulligan.config.text import read_text
from mulligan.errors import InvalidConfig, InvalidWorkflow
from mulligan.supervisor.workflow import load


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"\xef\xbb\xbfgr\xc3\xbc\xc3\x9fe\r\nnext\n")
    assert read_text(file) == "grüße\nnext\n"


def test_the_line_is_named_that_has_another_encoding(tmp_path: Path) -> None:
    with mulligan.open(tmp_path) as store:
        config, team = Path(str(store.path), "config.toml"), tmp_path / "team.toml"
    config.write_bytes(b'[retention]\nquota = "1 GB" # gr\xf6\xdfe\n')
    with pytest.raises(InvalidConfig) as told:
        mulligan.open(tmp_path)
    assert str(told.value) == f"{config} cannot be used: line 2 is not encoded as UTF-8."
    team.write_bytes('[agents.a]\ncommand = "true"\n'.encode("utf-16"))
    with pytest.raises(InvalidWorkflow) as told_:
        load(team)
    assert str(told_.value) == f"{team} cannot be read: line 1 is not encoded as UTF-8."
    (tmp_path / "prompt.md").write_bytes(b"one\ntwo\nthr\xe9e")
    team.write_text('[agents.a]\ncommand = "true"\nprompt = "@prompt.md"\n')
    with pytest.raises(InvalidWorkflow, match=r":3: .*prompt\.md' cannot be read: line 3 is not"):
        load(team)
