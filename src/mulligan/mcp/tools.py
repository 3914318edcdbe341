"""The tools: one function each, from checked arguments to a checked result."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mulligan.errors import InvalidArguments, UnsafeWorkspace
from mulligan.mcp import inputs, outputs
from mulligan.mcp.changes import diff_output, file_changes, state_changes
from mulligan.mcp.outputs import shaped
from mulligan.mcp.plans import Plans, check_current

if TYPE_CHECKING:
    from mulligan.mcp.project import Project
    from mulligan.session import Session
    from mulligan.views.restores import Preview

WORKSPACE = "workspace"

DONE = ("completed", "skipped")

MAX_LISTED = 200
"""How many tasks or effects are listed: a model has to read them."""


class Tool(msgspec.Struct, frozen=True):
    """A tool: what it takes and returns, what it may do, and the function.

    ``destructive`` marks what replaces files or state; a checkpoint only adds.
    """

    name: str
    title: str
    about: str
    takes: type[msgspec.Struct]
    returns: type[msgspec.Struct]
    run: Callable[[Tools, Any], msgspec.Struct]
    read_only: bool = True
    destructive: bool = False
    idempotent: bool = False


class Tools:
    """What the tools work with: the project, and the plans that were made in it."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.plans = Plans()

    def checkpoint(self, given: inputs.CheckpointInput) -> outputs.CheckpointOutput:
        """Take a checkpoint of state and files."""
        from mulligan.views.checkpoints import checkpoint_view

        session = self.project.session(given.session, create=True)
        taken = session.checkpoint("manual", given.note, given.label)
        return shaped(checkpoint_view(taken), outputs.CheckpointOutput)

    def status(self, given: inputs.StatusInput) -> outputs.StatusOutput:
        """Describe the store and its sessions."""
        from mulligan.views.sessions import status_view

        store = self.project.store()
        if given.session is not None:
            store.session(given.session, create=False)  # an unknown name is an error
        chosen = [one for one in store.sessions() if given.session in (None, one.name)]
        current = self.project.default(store) if store.sessions() else None
        return shaped(status_view(store, chosen, current), outputs.StatusOutput)

    def mark(self, given: inputs.MarkInput) -> outputs.CheckpointOutput:
        """Mark a checkpoint as good or bad."""
        from mulligan.views.checkpoints import checkpoint_view

        session = self.project.session(given.session)
        marked = session.checkpoints.mark(given.point, given.verdict, given.note)
        return shaped(checkpoint_view(marked, given.verdict), outputs.CheckpointOutput)

    def read_file(self, given: inputs.ReadFileInput) -> outputs.FileOutput:
        """Read a file as it was at a point."""
        from mulligan.views.points import point_view

        session = self.project.session(given.session)
        point = session.point(given.point)
        whole = session.files.read(point, given.path)
        text, encoding = as_text(whole, given.offset, given.limit)
        return outputs.FileOutput(
            path=given.path,
            point=shaped(point_view(point), outputs.PointOutput),
            content=text,
            encoding=encoding,
            size=len(whole),
            offset=given.offset,
            truncated=given.offset + given.limit < len(whole),
        )

    def log(self, given: inputs.LogInput) -> outputs.LogOutput:
        """List checkpoints, restores and forks."""
        from mulligan.views.log import log_page, log_view

        session = self.project.session(given.session)
        return shaped(log_view(session, log_page(session, given.count)), outputs.LogOutput)

    def diff(self, given: inputs.DiffInput) -> outputs.DiffOutput:
        """Compare two points, or a point with the present."""
        session = self.project.session(given.session)
        parts = None if given.paths is None else file_parts(given.paths)
        found = session.diff(given.before, given.after, parts)
        root = self.project.directory(session) or Path()
        return diff_output(session, found, given, root)

    def plan_restore(self, given: inputs.PlanInput) -> outputs.PlanOutput:
        """Preview a restore, and keep the plan."""
        session = self.project.session(given.session)
        if given.what == "files" and self.project.directory(session) is None:
            raise UnsafeWorkspace(f"The session {session.name!r} has no files.", hint="")
        # Before the preview: what is written while it is made may not be in it.
        head = session.head.seq
        parts = self._parts(session, given)
        preview = self._preview(session, given.point, parts)
        plan = self.plans.add(session, head, preview, given.what)
        files, state = preview.files, state_changes(preview.state)
        listed, effects = file_changes(files.files), preview.effects
        view = {
            "plan_id": plan.id,
            "session": session.name,
            "head": plan.head,
            "to": {"session": plan.point.session, "seq": plan.point.seq},
            "what": given.what,
            "left_alone": [{"path": one.path, "rule": one.rule} for one in files.left_alone],
            "conflicts": files.conflicts,
            "open_files": msgspec.to_builtins(files.open_files),
            "effects_left_behind": len(effects.left_behind) if effects else 0,
            "files": msgspec.to_builtins(listed.shown),
            "state": msgspec.to_builtins(state.shown),
            "truncated": listed.more or state.more,
        }
        return shaped(view, outputs.PlanOutput)

    def restore(self, given: inputs.RestoreInput) -> outputs.RestoredOutput:
        """Apply a plan, if it still says what a restore would do."""
        from mulligan.views.restores import restored_view

        plan = self.plans.find(given.plan_id)
        session = self.project.session(plan.session)
        check_current(plan, session, self._preview(session, plan.point, plan.parts))
        done = session.restore(plan.point, plan.parts, accept_left_behind=given.accept_left_behind)
        self.plans.drop(plan)
        view = restored_view(done, self.project.directory(session))
        return shaped(view, outputs.RestoredOutput)

    def undo(self, given: inputs.UndoInput) -> outputs.RestoredOutput:
        """Undo the last restore."""
        from mulligan.views.restores import restored_view

        session = self.project.session(given.session)
        done = session.undo(accept_left_behind=given.accept_left_behind)
        view = restored_view(done, self.project.directory(session))
        return shaped(view, outputs.RestoredOutput)

    def fork(self, given: inputs.ForkInput) -> outputs.ForkOutput:
        """Make a session that continues from a point, with files of its own if asked for."""
        from mulligan.locate.registry import remember_fork
        from mulligan.views.sessions import fork_view

        session, to = self.project.session(given.session), None
        if given.directory is None:
            made = session.fork(given.point, given.name)
        else:
            to = (self.project.settings.here / given.directory).resolve()
            made = session.fork(given.point, given.name, to, pointer=True)
            store = Path(self.project.store().path or "")
            remember_fork(self.project.settings.state, store, to, made.name)
        return shaped(fork_view(made, to), outputs.ForkOutput)

    def tasks(self, given: inputs.TasksInput) -> outputs.TasksOutput:
        """List the tasks of a session."""
        from mulligan.views.tasks import tasks_view

        view = tasks_view(self.project.session(given.session))
        shown = _open_first(view["tasks"], MAX_LISTED)
        view |= {"tasks": shown, "truncated": len(shown) < len(view["tasks"])}
        return shaped(view, outputs.TasksOutput)

    def effects(self, given: inputs.EffectsInput) -> outputs.EffectsOutput:
        """List the effects of a session on the outside world."""
        from mulligan.views.effects import effects_view

        session = self.project.session(given.session)
        found = session.effects.list(pending=given.pending, in_doubt=given.in_doubt)
        view = effects_view(session, found[-MAX_LISTED:])
        view["truncated"] = len(found) > MAX_LISTED
        return shaped(view, outputs.EffectsOutput)

    def search_history(self, given: inputs.SearchInput) -> outputs.SearchOutput:
        """Look for a text or a path in the history of a session."""
        from mulligan.mcp.search import search_path, search_text

        session = self.project.session(given.session)
        if bool(given.text) == bool(given.path):
            raise InvalidArguments("search_history takes either a text or a path.")
        if given.text:
            return search_text(session, given.text, given.limit)
        return search_path(session, given.path or "", given.limit)

    def _preview(self, session: Session, point: Any, parts: tuple[str, ...] | None) -> Preview:
        from mulligan.views.restores import preview_restore

        return preview_restore(session, point, parts, self.project.directory(session))

    def _parts(self, session: Session, given: inputs.PlanInput) -> tuple[str, ...] | None:
        if given.paths is not None and given.what != "files":
            raise InvalidArguments("paths go with what=files.")
        if given.what == "files":
            return (WORKSPACE,) if given.paths is None else file_parts(given.paths)
        if given.what == "both":
            return None
        there = session.state.at(given.point).get()
        now = session.state.get()
        return tuple(sorted({*(there or {}), *(now or {})}))


def file_parts(paths: list[str]) -> tuple[str, ...]:
    """Return paths of files as parts of a restore or a comparison."""
    if not paths or not all(path.strip("/") for path in paths):
        raise InvalidArguments("paths names files or directories, from the top of the project.")
    return tuple(f"{WORKSPACE}/{path.strip('/')}" for path in paths)


def as_text(whole: bytes, offset: int, limit: int) -> tuple[str, str]:
    """Return a part of a file as text, and how: UTF-8, or base64 for everything else.

    A character belongs to the part in which it begins, so that the next part goes on after it. All
    parts of a file have the same encoding, or bytes between two of them would be lost.
    """
    first, last = _character(whole, offset), _character(whole, offset + limit)
    try:
        whole.decode("utf-8")
    except UnicodeDecodeError:
        return b64encode(whole[offset : offset + limit]).decode(), "base64"
    return whole[first:last].decode("utf-8"), "utf-8"


def _character(whole: bytes, at: int) -> int:
    """Return where the next character of UTF-8 begins, if one does within three bytes."""
    rest = whole[at : at + 3]
    return at + len(rest) - len(rest.lstrip(bytes(range(0x80, 0xC0)))) if at else 0


def _open_first(tasks: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Return at most ``most`` tasks, in their order: those to do, and the last that are done."""
    done = [task["id"] for task in tasks if task["status"] in DONE]
    room = max(0, most - (len(tasks) - len(done)))
    dropped = set(done[: max(0, len(done) - room)])
    return [task for task in tasks if task["id"] not in dropped][:most]
