"""Patches: small changes of files cost little, and read as if they were stored in full."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mulligan
from mulligan import Session
from mulligan.codec import Ref
from mulligan.document.document import Document
from mulligan.errors import DamageError, UnsafeName, WorkspaceNeeded
from mulligan.model import Checkpoint, Digest
from mulligan.store import Store
from mulligan.workspace.capture.edits import MAX_PATCH_ENTRIES
from mulligan.workspace.capture.patch import TreePatch, read_patch
from tests.pictures import picture
from tests.trees import checkpoint_of, plain_tree

LEAF = ["f", 0o644, 0, 0, b""]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    (made / "src" / "deep").mkdir(parents=True)
    for number in range(2 * MAX_PATCH_ENTRIES):
        (made / "src" / f"file-{number}").write_text(f"{number}\n")
    (made / "src" / "deep" / "app.py").write_text("print('one')\n")
    (made / "notes.txt").write_text("notes\n")
    return made


def patch_of(session: Session, made: Checkpoint) -> TreePatch:
    assert made.workspace is not None
    return read_patch(Document({}, session._engine.load), made.workspace)


def test_a_small_change_is_stored_as_a_patch(session: Session, work: Path) -> None:
    first = session.checkpoint()
    (work / "src" / "deep" / "app.py").write_text("print('two')\n")
    (work / "notes.txt").unlink()
    (work / "src" / os.fsdecode(b"odd-\xff")).write_text("new\n")
    made = session.checkpoint()
    patch = patch_of(session, made)
    assert patch.base == first.workspace
    assert patch.entry("notes.txt") is None
    assert set(patch.entries) == {
        "",  # a file was deleted, so the times of the directory changed
        "notes.txt",
        "src/",
        "src/deep/app.py",
        "src/\x00odd-\xff",
    }
    assert session.restore(first).problems == ()
    assert (work / "notes.txt").read_text() == "notes\n"
    assert session.restore(made).problems == ()
    assert (work / "src" / "deep" / "app.py").read_text() == "print('two')\n"
    assert (work / "src" / os.fsdecode(b"odd-\xff")).read_text() == "new\n"
    assert not (work / "notes.txt").exists()


def test_what_changes_back_is_the_base_again(session: Session, work: Path) -> None:
    first = session.checkpoint()
    (work / "notes.txt").write_text("other\n")
    assert session.checkpoint().workspace != first.workspace
    session.restore(first)
    assert session.checkpoint().workspace == first.workspace


def test_what_a_patch_can_not_tell_is_stored_in_full(session: Session, work: Path) -> None:
    changes: list[Callable[[], object]] = [
        lambda: (work / "new").mkdir(),
        lambda: (work / "new").rmdir(),
        lambda: (work / "notes.txt").rename(work / "src" / "deep" / "notes.txt"),
        lambda: (work / "notes.txt").mkdir(),
        lambda: (work / "src" / "deep").rename(work / "moved"),
        lambda: (work / "src" / "deep").write_text("a file where a directory was\n"),
        lambda: (work / "moved").rename(work / "src" / "moved"),
    ]
    is_full = [True, True, False, True, True, False, True]
    session.checkpoint()
    for change, full in zip(changes, is_full, strict=True):
        change()
        made, seen = session.checkpoint(), picture(work)
        assert (patch_of(session, made).base == made.workspace) == full
        copy = work.with_name(f"copy-{made.seq}")
        assert session.files.copy(made, copy) == []
        assert picture(copy) == seen


def test_many_small_changes_become_a_base(session: Session, work: Path) -> None:
    """Each changes a file of its own, so the patch grows until it would be too large."""
    bases, pictures = [session.checkpoint().workspace], []
    for number in range(MAX_PATCH_ENTRIES + 20):
        (work / "src" / f"file-{number}").write_text("changed\n")
        made = session.checkpoint()
        base = patch_of(session, made).base
        if base != bases[-1]:
            assert base == made.workspace
            assert number == MAX_PATCH_ENTRIES
            bases.append(base)
        if number % 20 == 0:
            pictures.append((made, picture(work)))
    assert len(bases) == 2
    for made, seen in pictures:
        assert session.restore(made).problems == ()
        assert picture(work) == seen


def test_another_process_goes_on_with_the_patch(tmp_path: Path, work: Path) -> None:
    made = []
    for text in ("one\n", "two\n", "three\n"):
        (work / "notes.txt").write_text(text)
        with mulligan.open(tmp_path / "store") as store:
            session = store.session("run", workspace=work)
            made.append(session.checkpoint())
            patch = patch_of(session, made[-1])
            session.close()
        assert patch.base == made[0].workspace
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        for text, checkpoint in zip(("one\n", "two\n", "three\n"), made, strict=True):
            assert session.files.read(checkpoint, "notes.txt") == text.encode()
        assert session.restore(made[1]).problems == ()
    assert (work / "notes.txt").read_text() == "two\n"


def test_verify_looks_into_patches(session: Session, store: Store, work: Path) -> None:
    session.checkpoint()
    (work / "notes.txt").write_text("stored nowhere\n")
    session.checkpoint()
    assert store.verify().ok
    lost = Digest(bytes(32))
    checkpoint_of(session, lambda put: ["p", _base(session), {"notes.txt": [*LEAF[:4], lost]}])
    [problem] = store.verify().problems
    assert lost.hex() in problem.where
    checkpoint_of(session, lambda put: ["p", Ref(Digest(b"\1" * 32)), {}])
    assert (b"\1" * 32).hex() in store.verify().problems[-1].where


def _base(session: Session) -> Ref:
    return Ref(patch_of(session, session.checkpoint()).base)


@pytest.mark.parametrize(
    ("path", "entry", "expected"),
    [
        ("..", LEAF, UnsafeName),
        ("src/..", LEAF, UnsafeName),
        ("../outside", LEAF, (UnsafeName, DamageError)),
        ("src//outside", LEAF, (UnsafeName, DamageError)),
        ("notes.txt/inside", LEAF, DamageError),
        ("nowhere/inside", LEAF, DamageError),
        ("src", LEAF, DamageError),
        ("src/", LEAF, DamageError),
        ("", None, DamageError),
        ("new", {"": ["d", 0o755, 0]}, DamageError),
        ("new", ["d", 0o755, 0], DamageError),
        ("src", None, DamageError),
    ],
)
def test_a_forged_patch_is_refused_and_nothing_is_written(
    session: Session,
    store: Store,
    work: Path,
    tmp_path: Path,
    path: str,
    entry: Any,
    expected: Any,
) -> None:
    session.checkpoint()
    made = checkpoint_of(session, lambda put: ["p", _base(session), {path: entry}])
    before, head = picture(work), session.head
    for attempt in (
        lambda: session.files.plan(made),
        lambda: session.restore(made),
        lambda: session.files.copy(made, tmp_path / "copy"),
        lambda: session.fork(made, workspace=tmp_path / "fork"),
    ):
        with pytest.raises(expected):
            attempt()
    if path not in ("..", "src/.."):  # names are looked at by whoever uses them
        assert [problem.what for problem in store.verify().problems] == ["object"]
    assert picture(work) == before
    assert session.head == head
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize(
    "value",
    [
        lambda base: ["p", b"no reference", {}],
        lambda base: ["p", base, []],
        lambda base: ["q", base, {}],
    ],
)
def test_what_only_looks_like_a_patch_is_refused(
    session: Session, work: Path, value: Callable[[Ref], Any]
) -> None:
    session.checkpoint()
    made = checkpoint_of(session, lambda put: value(_base(session)))
    with pytest.raises(DamageError):
        session.files.plan(made)


def test_a_patch_of_a_patch_is_refused(session: Session, work: Path) -> None:
    session.checkpoint()
    (work / "notes.txt").write_text("other\n")
    patched = session.checkpoint()
    assert patched.workspace is not None
    tree = patched.workspace
    made = checkpoint_of(session, lambda put: ["p", Ref(tree), {"notes.txt": LEAF}])
    with pytest.raises(DamageError):
        session.files.plan(made)
    with pytest.raises(DamageError):
        plain_tree(session._engine.load, made.workspace)


def test_a_store_that_was_made_without_patches_gets_none(tmp_path: Path, work: Path) -> None:
    mulligan.open(tmp_path / "store").close()
    file = tmp_path / "store" / ".mulligan" / "FORMAT"
    format_ = json.loads(file.read_text())
    format_["features"].remove("patches")
    file.write_text(json.dumps(format_))
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        for text in ("one\n", "two\n"):
            (work / "notes.txt").write_text(text)
            made = session.checkpoint()
            assert patch_of(session, made).base == made.workspace


def test_a_damaged_base_is_not_built_upon(tmp_path: Path, work: Path) -> None:
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        (work / "new").mkdir()
        session.checkpoint()
        (work / "new").rmdir()
        session.checkpoint()  # stores the root anew, and nothing else
        (work / "notes.txt").write_text("other\n")
        base = patch_of(session, session.checkpoint()).base
        place = session._engine.objects.locate(base)  # type: ignore[attr-defined]
        session.close()
    [pack] = (tmp_path / "store" / ".mulligan" / "packs").glob("*.pack")
    with pack.open("r+b") as file:
        file.seek(place.offset)
        file.write(bytes(place.length))
    (work / "notes.txt").write_text("new\n")
    with mulligan.open(tmp_path / "store") as store:
        made = store.session("run", workspace=work).checkpoint()
        assert store.session("run", workspace=work).files.read(made, "notes.txt") == b"new\n"
        assert store.session("run", workspace=work).files.copy(made, tmp_path / "copy") == []
    assert picture(tmp_path / "copy") == picture(work)


def test_a_workspace_that_is_gone(session: Session, work: Path) -> None:
    session.checkpoint()
    work.rename(work.with_name("away"))
    for attempt in (session.checkpoint, session.checkpoint, lambda: session.restore("@latest")):
        with pytest.raises(WorkspaceNeeded):
            attempt()
    work.write_text("a file in its place")
    with pytest.raises(WorkspaceNeeded):
        session.checkpoint()
    work.unlink()
    work.with_name("away").rename(work)
    assert session.checkpoint().coverage is not None
