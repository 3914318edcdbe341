"""Rules and limits: what is left out, and by which rule; a changed rule counts at once."""

from __future__ import annotations

from pathlib import Path

import pytest

import mulligan
from mulligan import Session
from mulligan.errors import InvalidConfig
from mulligan.model import Checkpoint
from mulligan.workspace.capture.ignore import BUILT_IN, Rules
from tests.pictures import picture


def fill(work: Path, *paths: str) -> None:
    for path in paths:
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        (work / path).write_text(path)


def left_out(checkpoint: Checkpoint) -> dict[str, str]:
    assert checkpoint.coverage is not None
    return {left.path: left.rule for left in checkpoint.coverage.left_out}


def names(session: Session, checkpoint: Checkpoint, tmp_path: Path) -> set[str]:
    """Return the files that a checkpoint holds."""
    copy = tmp_path / f"copy-{checkpoint.seq}"
    assert session.files.copy(checkpoint, copy) == []
    return {path.decode() for path, seen in picture(copy).items() if seen.kind == "file"}


# --- rules -----------------------------------------------------------------------------------


def test_caches_that_their_tools_make_anew_are_left_out(session: Session, work: Path) -> None:
    fill(work, "__pycache__/a.pyc", "src/__pycache__/b.pyc", "src/.mypy_cache/x", ".DS_Store")
    fill(work, "node_modules/left-pad/index.js", ".venv/bin/python", "build/out", "x.log", ".env")
    assert left_out(session.checkpoint()) == {
        "__pycache__": "ignored by __pycache__/",
        "src/__pycache__": "ignored by __pycache__/",
        "src/.mypy_cache": "ignored by .mypy_cache/",
        ".DS_Store": "ignored by .DS_Store",
    }


def test_a_file_of_the_name_of_a_cache_directory_is_kept(session: Session, work: Path) -> None:
    fill(work, "__pycache__", "sub/.tox")
    assert left_out(session.checkpoint()) == {}


@pytest.mark.parametrize("pattern", BUILT_IN)
@pytest.mark.parametrize("lines", [[], ["nothing-of-this-name"]], ids=["alone", "with rules"])
def test_the_built_in_list_holds_with_and_without_rules(pattern: str, lines: list[str]) -> None:
    path = pattern.removesuffix("/").removeprefix("**/").encode()
    name = path.rpartition(b"/")[2]
    for above in (b"", b"a/b/"):
        rule = Rules(lines).rule(above + path, name, is_directory=pattern.endswith("/"))
        assert rule == pattern


@pytest.mark.parametrize("lines", [[], ["nothing-of-this-name"]], ids=["alone", "with rules"])
def test_packages_are_left_out_only_where_opencode_installs_its_own(lines: list[str]) -> None:
    for path in (b"node_modules", b"a/node_modules", b"x.opencode/node_modules"):
        assert Rules(lines).rule(path, b"node_modules", is_directory=True) is None
    file = Rules(lines).rule(b".opencode/node_modules", b"node_modules", is_directory=False)
    assert file is None


RULES = """\
# comments and blank lines say nothing

*.log
!keep.log
build/
/only-at-the-top.txt
docs/**/drafts
*.tmp\x20\x20
\\#starts-with-a-hash
\\!starts-with-a-bang
sub/*
!sub/kept.txt
b[ae]ll.txt

"""


def test_rules_are_those_of_gitignore(session: Session, work: Path, tmp_path: Path) -> None:
    (work / ".mulliganignore").write_text(RULES)
    fill(work, "a.log", "deep/b.log", "keep.log", "deep/keep.log", "build/x", "deep/build/y")
    fill(work, "only-at-the-top.txt", "deep/only-at-the-top.txt", "docs/a/b/drafts/z", "docs/ok")
    fill(work, "x.tmp", "#starts-with-a-hash", "!starts-with-a-bang", "sub/gone.txt")
    fill(work, "sub/kept.txt", "bell.txt", "ball.txt", "bill.txt", "comments")
    made = session.checkpoint()
    assert left_out(made) == {
        "a.log": "ignored by *.log",
        "deep/b.log": "ignored by *.log",
        "build": "ignored by build/",
        "deep/build": "ignored by build/",
        "only-at-the-top.txt": "ignored by /only-at-the-top.txt",
        "docs/a/b/drafts": "ignored by docs/**/drafts",
        "x.tmp": "ignored by *.tmp  ",
        "#starts-with-a-hash": "ignored by \\#starts-with-a-hash",
        "!starts-with-a-bang": "ignored by \\!starts-with-a-bang",
        "sub/gone.txt": "ignored by sub/*",
        "bell.txt": "ignored by b[ae]ll.txt",
        "ball.txt": "ignored by b[ae]ll.txt",
    }
    assert names(session, made, tmp_path) == {
        ".mulliganignore",
        "keep.log",
        "deep/keep.log",
        "deep/only-at-the-top.txt",
        "docs/ok",
        "sub/kept.txt",
        "bill.txt",
        "comments",
    }


def test_a_file_in_an_ignored_directory_cannot_be_taken_back_in(
    session: Session, work: Path
) -> None:
    (work / ".mulliganignore").write_text("build/\n!build/wanted\n")
    fill(work, "build/wanted")
    assert left_out(session.checkpoint()) == {"build": "ignored by build/"}


def test_a_bang_takes_a_built_in_cache_in(session: Session, work: Path, tmp_path: Path) -> None:
    (work / ".mulliganignore").write_text("!__pycache__/\n")
    fill(work, "__pycache__/a.pyc")
    made = session.checkpoint()
    assert left_out(made) == {}
    assert "__pycache__/a.pyc" in names(session, made, tmp_path)


def test_lines_that_are_no_patterns_are_passed_over(session: Session, work: Path) -> None:
    (work / ".mulliganignore").write_bytes(b"!\n\\\nends\\\n[\n/\n\xff\xfe\n*.log\r\n\n")
    fill(work, "a.log", "file")
    assert left_out(session.checkpoint()) == {"a.log": "ignored by *.log\r"}


def test_a_store_is_never_captured_whatever_the_rules_say(work: Path) -> None:
    (work / ".mulliganignore").write_text("!.mulligan\n!.mulligan/\n!*\n")
    with mulligan.open(work) as store, mulligan.open(work / "sub") as other:
        other.session("inner").state.set("a", 1)
        session = store.session("run", workspace=work)
        made = session.checkpoint()
        assert left_out(made) == {
            ".mulligan": "ignored by .mulligan",
            "sub/.mulligan": "ignored by .mulligan",
        }
        (work / "file").touch()
        session.restore(made)
        assert other.session("inner").state.get("a") == 1
        assert store.verify().ok


@pytest.mark.parametrize("watched", [False, True])
def test_a_pointer_is_neither_captured_nor_restored_nor_deleted(
    session: Session, work: Path, watched: bool
) -> None:
    if watched:
        session.internal.watch()
    fill(work, "kept.txt", ".mulligan", "fork/.mulligan", "fork/file", ".mulligan.new-1/x")
    first = session.checkpoint()
    assert left_out(first) == {
        ".mulligan": "ignored by .mulligan",
        ".mulligan.new-1": "ignored by .mulligan",
        "fork/.mulligan": "ignored by .mulligan",
    }
    fill(work, "other/.mulligan", "other/file")
    (work / ".mulligan").write_text("another pointer")
    (work / "fork/.mulligan").unlink()
    session.checkpoint()
    session.restore(first)
    assert (work / ".mulligan").read_text() == "another pointer"
    assert (work / "other/.mulligan").exists()
    assert not (work / "other/file").exists()
    assert not (work / "fork/.mulligan").exists()


def test_a_pointer_in_an_old_checkpoint_is_not_brought_back(
    session: Session, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(work, "kept.txt", ".mulligan", "fork/.mulligan")
    with monkeypatch.context() as before:
        before.setattr("mulligan.workspace.capture.ignore.is_of_store", lambda name: False)
        old = session.checkpoint()
    assert left_out(old) == {}
    fill(work, "new.txt")
    (work / ".mulligan").write_text("the present one")
    session.restore(old)
    assert (work / ".mulligan").read_text() == "the present one"
    assert names(session, old, tmp_path) == {"kept.txt"}


# --- changed rules ---------------------------------------------------------------------------


def test_a_file_newly_ignored_leaves_the_tree_and_stays_where_it_is(
    session: Session, work: Path, tmp_path: Path
) -> None:
    fill(work, "a.log", "logs/b.log", "kept.txt", "cache/x")
    first = session.checkpoint()
    (work / ".mulliganignore").write_text("*.log\ncache/\n")
    second = session.checkpoint()
    assert set(left_out(second)) == {"a.log", "logs/b.log", "cache"}
    assert names(session, second, tmp_path) == {".mulliganignore", "kept.txt"}
    assert second.coverage is not None
    assert second.coverage.files == 2
    (work / "kept.txt").write_text("changed")
    (work / "a.log").write_text("grown since, in no checkpoint")
    session.restore(second)
    assert (work / "kept.txt").read_text() == "kept.txt"
    assert (work / "a.log").read_text() == "grown since, in no checkpoint"
    assert (work / "cache" / "x").exists()
    assert first.coverage is not None
    assert left_out(first) == {}


def test_a_file_no_longer_ignored_comes_in(session: Session, work: Path, tmp_path: Path) -> None:
    (work / ".mulliganignore").write_text("*.log\ncache/\n")
    fill(work, "a.log", "cache/x")
    session.checkpoint()
    (work / ".mulliganignore").write_text("cache/\n")
    made = session.checkpoint()
    assert names(session, made, tmp_path) == {".mulliganignore", "a.log"}
    (work / ".mulliganignore").unlink()
    made = session.checkpoint()
    assert left_out(made) == {}
    assert names(session, made, tmp_path) == {"a.log", "cache/x"}


def test_changed_rules_count_after_a_restart_too(tmp_path: Path, work: Path) -> None:
    fill(work, "a.log", "b.txt")
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        session.checkpoint()
        session.close()
    (work / ".mulliganignore").write_text("*.log\n")
    with mulligan.open(tmp_path / "store") as store:
        made = store.session("run", workspace=work).checkpoint()
        assert left_out(made) == {"a.log": "ignored by *.log"}


def test_what_is_ignored_now_is_not_written_over_by_what_was_captured_before(
    session: Session, work: Path
) -> None:
    fill(work, "a.log", "cache/x", "cache/y", "b.txt")
    first = session.checkpoint()
    (work / ".mulliganignore").write_text("*.log\ncache/\n")
    (work / "a.log").write_text("in no checkpoint")
    (work / "cache" / "x").write_text("in no checkpoint")
    (work / "cache" / "y").unlink()
    (work / "b.txt").write_text("changed")
    before = picture(work)
    done = session.restore(first)
    assert [(problem.where, problem.detail) for problem in done.problems] == [
        ("a.log", "it is left alone, no checkpoint holds it: ignored by *.log"),
        ("cache", "it is left alone, no checkpoint holds it: ignored by cache/"),
    ]
    assert (work / "a.log").read_text() == "in no checkpoint"
    assert (work / "cache" / "x").read_text() == "in no checkpoint"
    assert (work / "b.txt").read_text() == "b.txt"
    session.undo()
    assert picture(work) == before


def test_what_the_point_did_not_cover_is_not_deleted(session: Session, work: Path) -> None:
    (work / ".mulliganignore").write_text("*.log\ncache/\n")
    fill(work, "b.txt")
    first = session.checkpoint()
    fill(work, "a.log", "cache/x")
    then = session.checkpoint()
    (work / ".mulliganignore").unlink()
    fill(work, "c.txt")
    before = picture(work)
    assert session.restore(then).problems == ()
    assert (work / "a.log").exists(), "it was there, and nobody looked at it"
    assert (work / "cache" / "x").exists()
    assert not (work / "c.txt").exists()
    session.undo()
    assert picture(work) == before
    # Of the first checkpoint it is known that they were not there: its rules name what was.
    assert left_out(first) == {}


# --- limits ----------------------------------------------------------------------------------


def configure(tmp_path: Path, text: str) -> None:
    with mulligan.open(tmp_path / "store") as store:
        assert store.path is not None
        (Path(store.path) / "config.toml").write_text(text)


def test_a_file_above_the_limit_is_left_out_until_it_fits(tmp_path: Path, work: Path) -> None:
    configure(tmp_path, "[workspace]\nmax_file_size = 10\n")
    (work / "small").write_bytes(b"x" * 10)
    (work / "large").write_bytes(b"x" * 11)
    (work / "link").symlink_to("a-target-of-more-than-ten-bytes")
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        made = session.checkpoint()
        assert left_out(made) == {"large": "it is larger than max_file_size, 10 bytes"}
        assert made.coverage is not None
        assert (made.coverage.files, made.coverage.bytes) == (2, 10)
        (work / "large").write_bytes(b"x" * 9)
        (work / "small").write_bytes(b"x" * 12)
        made = session.checkpoint()
        assert left_out(made) == {"small": "it is larger than max_file_size, 10 bytes"}
        assert made.coverage is not None
        assert (made.coverage.files, made.coverage.bytes) == (2, 9)


def test_limits_are_sizes_as_the_quota_is(tmp_path: Path, work: Path) -> None:
    configure(tmp_path, "[workspace]\nmax_file_size = '1KiB'\nbudget = '2MB'\n")
    (work / "fits").write_bytes(b"x" * 1024)
    (work / "large").write_bytes(b"x" * 1025)
    with mulligan.open(tmp_path / "store") as store:
        made = store.session("run", workspace=work).checkpoint()
        assert list(left_out(made)) == ["large"]
    (tmp_path / "store" / ".mulligan" / "config.toml").write_text(
        "[workspace]\nbudget = '5 parsecs'\n"
    )
    with pytest.raises(InvalidConfig, match=r"toml:2: workspace\.budget: .* a size such as"):
        mulligan.open(tmp_path / "store")


def test_a_raised_limit_takes_in_what_was_too_large(tmp_path: Path, work: Path) -> None:
    (work / "large").write_bytes(b"x" * 100)
    for limit, expected in ((10, ["large"]), (200, [])):
        configure(tmp_path, f"[workspace]\nmax_file_size = {limit}\n")
        with mulligan.open(tmp_path / "store") as store:
            session = store.session("run", workspace=work)
            assert list(left_out(session.checkpoint())) == expected
            session.close()


def test_a_budget_ends_at_the_same_file_whoever_looks(tmp_path: Path, work: Path) -> None:
    configure(tmp_path, "[workspace]\nbudget = 100\n")
    for name in ("e", "c", "a", "d", "b"):
        (work / name).mkdir()
        (work / name / "file").write_bytes(name.encode() * 30)
    with mulligan.open(tmp_path / "store") as store:
        made = [store.session(name, workspace=work).checkpoint() for name in ("one", "two")]
        assert made[0].workspace == made[1].workspace
        reason = "the budget of 100 bytes has no room for it"
        assert left_out(made[0]) == {"d/file": reason, "e/file": reason}
        assert made[0].coverage is not None
        assert made[0].coverage.bytes == 90


def test_a_smaller_file_still_fits_a_budget_and_room_is_used_again(
    tmp_path: Path, work: Path
) -> None:
    configure(tmp_path, "[workspace]\nbudget = 100\n")
    sizes = {"a": 60, "b": 60, "c": 40}
    for name, size in sizes.items():
        (work / name).write_bytes(b"x" * size)
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        assert list(left_out(session.checkpoint())) == ["b"]
        (work / "a").write_bytes(b"y" * 70)
        made = session.checkpoint()
        # What is held keeps its place; what grew beyond it goes, and leaves room for another.
        assert list(left_out(made)) == ["a"]
        (work / "a").unlink()
        made = session.checkpoint()
        assert left_out(made) == {}
        assert made.coverage is not None
        assert made.coverage.bytes == 100


def test_what_the_budget_left_out_stays_through_a_restore(tmp_path: Path, work: Path) -> None:
    configure(tmp_path, "[workspace]\nbudget = 10\n")
    (work / "a").write_bytes(b"12345")
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        made = session.checkpoint()
        (work / "b").write_bytes(b"123456")
        (work / "a").write_bytes(b"54321")
        assert session.restore(made).problems == ()
        assert (work / "b").read_bytes() == b"123456"
        assert (work / "a").read_bytes() == b"12345"


@pytest.mark.parametrize(
    "text",
    ["[workspace]\nmax_file_size = 'big'\n", "[workspace]\nbudgett = 1\n", "[workspace", "\0"],
)
def test_a_configuration_that_cannot_be_used_is_refused(tmp_path: Path, text: str) -> None:
    configure(tmp_path, text)
    with pytest.raises(InvalidConfig):
        mulligan.open(tmp_path / "store")
