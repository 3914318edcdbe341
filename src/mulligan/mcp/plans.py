"""Restores that were previewed: only what was seen may be applied."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec

from mulligan.errors import PlanOutdated
from mulligan.views.encoding import jsonable
from mulligan.views.files import file_change_views, left_out_views

if TYPE_CHECKING:
    from pathlib import Path

    from mulligan.mcp.inputs import What
    from mulligan.model import Point
    from mulligan.session import Session
    from mulligan.views.restores import Preview

MAX_PLANS = 32
_AGAIN = "Nothing was changed. Call plan_restore, look at what it says, and restore with that plan."


class RestorePlan(msgspec.Struct, frozen=True):
    """A restore as it was previewed: on which head, and which files it would change."""

    id: str
    session: str
    head: int
    point: Point
    what: What
    parts: tuple[str, ...] | None
    files: bytes


class Plans:
    """The newest plans of this process."""

    def __init__(self) -> None:
        self._plans: OrderedDict[str, RestorePlan] = OrderedDict()

    def add(self, session: Session, head: int, preview: Preview, what: What) -> RestorePlan:
        """Keep a plan that was made on a head, and return it with its id."""
        files = digest(preview)
        about = (session.name, head, preview.state.after.session, preview.state.after.seq)
        named = msgspec.json.encode((about, what, preview.parts)) + files
        id = blake2b(named, digest_size=8).hexdigest()
        point = preview.state.after
        plan = RestorePlan(id, session.name, head, point, what, preview.parts, files)
        self._plans[id] = plan
        self._plans.move_to_end(id)
        # Bounded: an agent may make plans for days and apply none.
        while len(self._plans) > MAX_PLANS:
            self._plans.popitem(last=False)
        return plan

    def find(self, id: str) -> RestorePlan:
        """Return a plan, or raise ``PlanOutdated``."""
        plan = self._plans.get(id)
        if plan is None:
            raise PlanOutdated(f"There is no plan {id!r} here.", hint=_AGAIN)
        return plan

    def drop(self, plan: RestorePlan) -> None:
        """Forget a plan: it was applied."""
        self._plans.pop(plan.id, None)


def check_current(plan: RestorePlan, session: Session, now: Preview) -> None:
    """Raise ``PlanOutdated`` unless a restore does today what its plan said.

    A plan of the state needs the very head that it was made on. One of files alone may be applied
    after events that leave files alone, such as the record of the call that applies it; but not
    after another restore, and not when any file would be changed in another way.
    """
    head = session.head.seq
    if plan.what != "files" and head != plan.head:
        raise PlanOutdated(
            f"The session went on from #{plan.head} to #{head} since the plan was made.",
            hint=f"{_AGAIN} Where hooks record every call, restore files alone (what=files), or "
            "let a person run `mulligan rewind`.",
        )
    if any(event.kind.startswith("restore.") for event in session.events(plan.head)):
        raise PlanOutdated("Something was restored since the plan was made.", hint=_AGAIN)
    if digest(now) != plan.files:
        raise PlanOutdated("Files have changed since the plan was made.", hint=_AGAIN)


def digest(preview: Preview) -> bytes:
    """Return a digest of what a restore does to files, and of what it would replace.

    The times of the present files are in it: content may change without another size.
    """
    files, root = preview.files, preview.directory
    replaced = [] if root is None else [_stamp(root / one.os_path) for one in files.files]
    changes = file_change_views(files.files), left_out_views(files.left_alone)
    about = msgspec.json.encode(jsonable((*changes, files.conflicts, replaced)))
    return blake2b(about, digest_size=16).digest()


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns
