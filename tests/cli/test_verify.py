"""mulligan verify: how much is read, what is said, what is recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mulligan.testing.objects import noise
from tests.cli.conftest import Cli
from tests.stores import store_of

BIG = noise(300_000, 7)


@pytest.fixture
def used(store: Cli, place: Path) -> Cli:
    (place / "big.bin").write_bytes(BIG)
    assert store("checkpoint").code == 0
    return store


def flip(place: Path) -> None:
    [pack] = (store_of(place) / "packs").iterdir()
    data = bytearray(pack.read_bytes())
    data[data.index(BIG[1000:1100])] ^= 1
    pack.write_bytes(data)


def events(cli: Cli) -> list[str]:
    kinds = [json.loads(line)["kind"] for line in cli("events", "--json").out.splitlines()]
    return [kind for kind in kinds if kind.startswith("verify.")]


def test_the_default_checks_the_structure_and_only_looks(used: Cli, place: Path) -> None:
    flip(place)
    done = used("verify", "--json")
    assert done.code == 0
    assert (done.json["full"], done.json["read_bytes"], done.json["recorded"]) == (False, 0, False)
    assert "--full reads every byte" in used("verify").out
    assert events(used) == []


def test_full_reads_every_byte_and_a_capture_heals_what_it_finds(used: Cli, place: Path) -> None:
    assert "all 301 KB read" in used("verify", "--full").out
    flip(place)
    failed = used("verify", "--full", "--json")
    assert failed.code == 60
    [problem] = failed.json["problems"]
    assert problem["fault"] == "object"
    assert (problem["pack"], len(problem["digest"])) == (1, 64)
    assert events(used) == ["verify.passed", "verify.failed"]
    shown = used("status")
    assert "found damage: object" in shown.out
    assert used("status", "--json").json["verify"]["problem_count"] == 1
    assert used("verify").code == 60  # it is noted
    used("checkpoint")
    assert used("verify", "--full").code == 0
    assert "no problems" in used("status").out


def test_a_sample_can_be_repeated(used: Cli) -> None:
    first = used("verify", "--sample", "30%", "--json").json
    assert 0 < first["read_bytes"] < first["stored_bytes"]
    seed = str(first["seed"])
    again = used("verify", "--sample", "30%", "--seed", seed, "--rate", "100MB", "--json").json
    assert again["read_bytes"] == first["read_bytes"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--sample", "5"], "is not a part such as '5%'"),
        (["--sample", "0%"], "is not a part such as '5%'"),
        (["--rate", "fast", "--full"], "not a size"),
        (["--full", "--quick"], "Choose one of"),
        (["--full", "--sample", "5%"], "Choose one of"),
        (["--seed", "1"], "--seed goes with --sample"),
    ],
)
def test_wrong_options(used: Cli, options: list[str], says: str) -> None:
    done = used("verify", *options)
    assert done.code == 2
    assert says in done.err


def test_a_store_that_cannot_be_written_is_checked_all_the_same(used: Cli, place: Path) -> None:
    flip(place)
    file = store_of(place) / "journal" / "data.mdb"
    data = bytearray(file.read_bytes())
    data[-4096:] = bytes(4096)
    file.write_bytes(data)
    done = used("verify", "--full")
    assert done.code == 60
    assert "✗ journal" in done.out
    assert "the result is not on the timeline" in done.err
