"""Files in diffs: what changed, line by line where it is text."""

from __future__ import annotations

import importlib
import io
import os
import subprocess
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from mulligan.cli.main import run
from tests.nobody import as_nobody, place_of_nobody


@pytest.fixture
def project(store, place: Path):
    """A checkpoint ``one`` with a file of each sort."""
    (place / "src").mkdir()
    (place / "src/app.py").write_text("one\ntwo\nthree\n")
    (place / "src/gone.py").write_text("gone\n")
    (place / "old-name.txt").write_text("the same content\n")
    (place / "logo.png").write_bytes(b"\x89PNG\0" + bytes(100))
    (place / "run.sh").write_text("#!/bin/sh\n")
    (place / "run.sh").chmod(0o644)
    (place / "link").symlink_to("src/app.py")
    assert store("checkpoint", "--label", "one").code == 0
    return store


@pytest.fixture
def changed(project, place: Path):
    """The project with one change of each sort since."""
    (place / "src/app.py").write_text("one\n2\nthree\nfour")
    (place / "src/gone.py").unlink()
    (place / "src/new.py").write_text("new\n")
    (place / "old-name.txt").rename(place / "new-name.txt")
    (place / "logo.png").write_bytes(b"\x89PNG\0" + bytes(300))
    (place / "run.sh").chmod(0o755)
    (place / "link").unlink()
    (place / "link").symlink_to("src/new.py")
    (place / "empty").mkdir()
    return project


NAMES = [b"caf\xe9", b"dir\xff/caf\xe9.txt", rb"literal\xe9", "é\n".encode()]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_any_bytes_is_compared_now_and_then(store, place: Path, name: bytes):
    file = place / os.fsdecode(name)
    file.parent.mkdir(exist_ok=True)
    file.write_text("one\n")
    store("checkpoint", "--label", "one")
    file.write_text("two\n")
    store("checkpoint", "--label", "two")
    for points in (["one"], ["one", "two"]):
        said = store("diff", *points).out
        assert "-one\n+two\n" in said
        assert "not readable" not in said
        [change] = store("diff", *points, "--json", "--patch").json["files"]
        assert change["patch"].endswith("@@ -1 +1 @@\n-one\n+two\n")
        # What is printed can be given back, and so can the name itself.
        for part in (change["path"], os.fsdecode(name)):
            [again] = store("diff", *points, "--only", part, "--json").json["files"]
            assert again == {key: change[key] for key in again}
    part = change["path"]
    assert store("restore", "one", "--only", part).code == 0
    assert file.read_text() == "one\n"
    assert store("restore", "two", "--to", "copy", "--only", f"workspace/{part}").code == 0
    assert (place / "copy" / os.fsdecode(name)).read_text() == "two\n"


def test_a_name_that_looks_escaped_is_taken_as_it_is_first(store, place: Path):
    for name in (b"caf\xe9", rb"caf\xe9"):
        (place / os.fsdecode(name)).write_text(f"{name!r}\n")
    store("checkpoint", "--label", "one")
    for name in (b"caf\xe9", rb"caf\xe9"):
        (place / os.fsdecode(name)).write_text("changed\n")
    said = store("diff", "one").out
    for name in (b"caf\xe9", rb"caf\xe9"):
        assert f"-{name!r}\n+changed\n" in said
    store("restore", "one", "--only", r"caf\xe9")
    assert (place / r"caf\xe9").read_text() != "changed\n"
    assert (place / os.fsdecode(b"caf\xe9")).read_text() == "changed\n"


def test_for_people(changed):
    assert changed("diff", "one").out.splitlines() == [
        "main #2 → the present, main #2",
        "+ empty/  directory",
        "~ link  symlink",
        "--- a/link",
        "+++ b/link",
        "@@ -1 +1 @@",
        "-src/app.py",
        "\\ No newline at end of file",
        "+src/new.py",
        "\\ No newline at end of file",
        "~ logo.png  105 bytes → 305 bytes",
        "→ new-name.txt  from old-name.txt",
        "~ run.sh  mode 644 → 755",
        "~ src/app.py  14 bytes → 16 bytes",
        "--- a/src/app.py",
        "+++ b/src/app.py",
        "@@ -1,3 +1,4 @@",
        " one",
        "-two",
        "+2",
        " three",
        "+four",
        "\\ No newline at end of file",
        "- src/gone.py  5 bytes",
        "--- a/src/gone.py",
        "+++ /dev/null",
        "@@ -1 +0,0 @@",
        "-gone",
        "+ src/new.py  4 bytes",
        "--- /dev/null",
        "+++ b/src/new.py",
        "@@ -0,0 +1 @@",
        "+new",
        "files: 2 added, 1 removed, 3 changed, 1 renamed, 1 with other attributes",
    ]


def test_stat_counts_lines(changed):
    said = changed("diff", "one", "--stat").out
    rows = {line.split()[0]: line.split()[1:] for line in said.splitlines()[1:-1]}
    assert rows["src/app.py"] == ["+2", "-1"]
    assert rows["src/gone.py"] == ["-1"]
    assert rows["src/new.py"] == ["+1"]
    assert rows["logo.png"] == ["105", "bytes", "→", "305", "bytes"]
    assert rows["run.sh"] == ["mode", "644", "→", "755"]
    assert said.splitlines()[-1].endswith("; 4 lines added, 3 removed")


def test_names_only_and_quiet(changed):
    names = ["empty", "link", "logo.png", "new-name.txt", "run.sh", "src/app.py"]
    names += ["src/gone.py", "src/new.py"]
    assert changed("diff", "one", "--name-only").out.splitlines() == names
    changed("state", "set", "memory/goal", "first")
    assert changed("diff", "one", "-q").out.splitlines() == ["memory", *names]
    assert changed("diff", "one", "--name-only").out.splitlines() == names


def test_as_json(changed):
    found = changed("diff", "one", "--json").json
    files = {change["path"]: change for change in found["files"]}
    assert files["new-name.txt"]["old_path"] == "old-name.txt"
    assert files["run.sh"]["change"] == "attributes"
    assert (files["run.sh"]["old_mode"], files["run.sh"]["mode"]) == ("644", "755")
    assert (files["logo.png"]["old_size"], files["logo.png"]["size"]) == (105, 305)
    assert files["src/gone.py"]["change"] == "removed"
    assert all("patch" not in change for change in found["files"])


def test_as_json_with_the_text(changed):
    found = changed("diff", "one", "--json", "--patch").json["files"]
    patches = {change["path"]: change["patch"] for change in found}
    assert "-two\n+2\n" in patches["src/app.py"]
    assert patches["logo.png"] is None
    assert patches["run.sh"] == ""


def test_the_text_of_a_point_is_read_from_the_store_and_not_the_disk(changed, place: Path):
    changed("checkpoint", "--label", "two")
    (place / "src/app.py").write_text("something else\n")
    said = changed("diff", "one", "two").out
    assert said.startswith("main #2 → main #3\n")
    assert "+2\n" in said
    assert "something else" not in said
    assert "+something else" in changed("diff", "two").out


def test_a_patch_can_be_applied(changed, place: Path, tmp_path_factory):
    before = tmp_path_factory.mktemp("before") / "tree"
    changed("restore", "one", "--to", str(before))
    patch = changed("diff", "one", "--full", "--only", "src").out
    done = subprocess.run(["git", "apply", "-"], cwd=before, input=patch, text=True, check=False)
    assert done.returncode == 0
    assert (before / "src/app.py").read_bytes() == (place / "src/app.py").read_bytes()
    assert not (before / "src/gone.py").exists()


def test_can_be_narrowed(changed):
    assert changed("diff", "one", "--only", "src", "--name-only").out.split() == [
        "src/app.py",
        "src/gone.py",
        "src/new.py",
    ]
    assert changed("diff", "one", "--only", "src/gone.py", "--name-only").out == "src/gone.py\n"
    assert changed("diff", "one", "--only", "src/new.py", "--name-only").out == "src/new.py\n"
    assert changed("diff", "one", "--only", "nothing").code == 42


def test_without_files(changed):
    assert changed("diff", "one", "--no-files").out.splitlines()[-1] == "Nothing differs."
    assert changed("diff", "one", "--no-files", "--json").json["files"] == []


def test_long_diffs_are_cut_unless_all_is_asked_for(project, place: Path):
    (place / "long.txt").write_text("".join(f"line {n}\n" for n in range(500)))
    short = project("diff", "one").out
    assert "… 443 lines more; --full shows them" in short
    assert "+line 499" not in short
    assert "+line 499" in project("diff", "one", "--full").out
    assert "+500" in project("diff", "one", "--stat").out


def test_many_diffs_are_cut_unless_all_is_asked_for(project, place: Path):
    for number in range(30):
        (place / f"{number:02}.txt").write_text("line\n" * 100)
    short = project("diff", "one")
    assert "not all diffs are shown" in short.err
    assert "+ 29.txt  500 bytes" in short.out
    assert len(short.out.splitlines()) < 700
    assert len(project("diff", "one", "--full").out.splitlines()) > 3000


def test_large_files_are_not_compared_unless_all_is_asked_for(project, place: Path):
    (place / "large.txt").write_text("a line\n" * 200_000)
    project("checkpoint", "--label", "two")
    with (place / "large.txt").open("a") as file:
        file.write("the end\n")
    said = project("diff", "two").out
    assert "too large to compare (1.4 MB)" in said
    assert "the end" not in said
    assert project("diff", "two", "--json", "--patch").json["files"][0]["patch"] is None
    assert "+the end" in project("diff", "two", "--full").out


def test_what_git_keeps_and_mere_times_are_counted_unless_all_is_asked_for(project, place: Path):
    (place / ".git").mkdir()
    (place / ".git/HEAD").write_text("ref: refs/heads/main\n")
    os.utime(place / "src/app.py", ns=(1, 1))
    said = project("diff", "one").out
    assert "not shown: 1 path in .git; --full shows them" in said
    assert "not shown: 1 file with other times" in said
    assert "HEAD" not in said
    assert project("diff", "one", "--name-only").out == ""
    full = project("diff", "one", "--full").out
    assert "+ref: refs/heads/main" in full
    assert "~ src/app.py  times or extended attributes" in full


def test_a_kind_that_changes(project, place: Path):
    (place / "run.sh").unlink()
    (place / "run.sh").symlink_to("src/app.py")
    (place / "link").unlink()
    (place / "link").mkdir()
    (place / "link/inside").write_text("in\n")
    said = project("diff", "one").out
    assert "-#!/bin/sh" in said
    assert "+src/app.py" in said
    assert "- link  symlink" in said
    assert "+ link/inside" in said


def test_names_that_are_no_text_do_no_harm(project, place: Path):
    name = os.fsencode(place) + b"/caf\xe9\n.txt"
    with open(name, "wb") as file:
        file.write(b"latin\n")
    for more in ([], ["--stat"], ["--name-only"], ["--json", "--patch"], ["--full"]):
        done = project("diff", "one", *more)
        assert done.code == 0
        assert r"caf\xe9" in done.out.replace(r"\\", "\\")


def test_windows_line_ends_and_tabs_stay(project, place: Path):
    (place / "dos.txt").write_bytes(b"a\tb\r\n")
    assert "+a\tb\r\n" in project("diff", "one").out


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--stat", "--name-only"], "exclude each other"),
        (["--patch"], "--patch is for --json"),
    ],
)
def test_options_that_do_not_go_together(project, args: list[str], said: str):
    refused = project("diff", "one", *args)
    assert refused.code == 2
    assert said in refused.err


def test_a_point_without_files_is_told(store, place: Path):
    store("checkpoint", "--no-files", "--label", "bare")
    (place / "a.txt").touch()
    told = store("diff", "bare")
    assert "Nothing differs" in told.out
    assert "holds no files; they were not compared" in told.err


def test_diff_leaves_no_trace(changed):
    before = changed("events", "--json").out
    changed("diff", "one")
    assert changed("events", "--json").out == before
    assert changed("verify").code == 0


def test_a_store_that_cannot_be_written_is_compared_with_the_present(changed):
    """And nothing is written into it; the commands here have imported all that it takes."""
    for name in ("pyfastcdc", "concurrent.futures.thread"):
        importlib.import_module(name)  # a large file needs them, and Python may be out of reach
    assert "+four" in changed("diff", "one").out
    assert "src/new.py" in changed("restore", "one", "--dry-run").out
    with place_of_nobody() as place:
        as_nobody(lambda: _compare_read_only(place))


def _compare_read_only(place: Path) -> None:
    os.chdir(place)
    _said("init", "--inside")
    (place / "kept").write_text("kept\n")
    (place / "old").write_text("one\n")
    _said("checkpoint", "--label", "one")
    (place / "old").write_text("one\ntwo\n")
    (place / "new").mkdir()
    (place / "new/large").write_bytes(os.urandom(3 << 20))
    stored = [place / ".mulligan", *(place / ".mulligan").rglob("*")]
    for path in stored:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = [(path, path.stat().st_mtime_ns, path.stat().st_size) for path in stored]
    looks = [["diff", "one"], ["diff", "one", "--json"], ["restore", "one", "--dry-run"]]
    read_only = [_said(*look) for look in looks]
    assert sorted((place / ".mulligan").rglob("*")) == sorted(stored[1:])
    assert [(path, path.stat().st_mtime_ns, path.stat().st_size) for path in stored] == before
    for path in stored:
        path.chmod(0o755 if path.is_dir() else 0o644)
    assert read_only == [_said(*look) for look in looks]
    assert "+two" in read_only[0]
    assert "new/large" in read_only[0]
    assert "kept" not in read_only[0]


def _said(*command: str) -> str:
    """Return what a command prints; it has to succeed."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = run(command)
    assert code == 0, err.getvalue()
    return out.getvalue()


def test_parts_can_be_named_from_here(changed, place: Path, monkeypatch):
    monkeypatch.chdir(place / "src")
    assert changed("diff", "one", "--only", "./gone.py", "--name-only").out == "src/gone.py\n"
    outside = changed("diff", "one", "--only", "../../x")
    assert outside.code == 2
    assert "is not in the workspace" in outside.err
