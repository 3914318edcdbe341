"""Microsoft Agent Framework: checkpoints of workflows on a Mulligan timeline.

::

    storage = MulliganCheckpointStorage(".")
    result = await workflow.run(**await storage.resume_input(workflow, message))

Every checkpoint of a workflow is a checkpoint of one Mulligan session, whose state then holds the
messages and the state of the workflow. So what did not change between two is stored once.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from typing import Any

from mulligan.integrations.missing_extra import framework

with framework("agent-framework", "agent_framework"):
    from agent_framework import WorkflowCheckpoint, WorkflowCheckpointException

from mulligan.errors import CheckpointNeeded, KeyTaken, UnstorableValue
from mulligan.integrations.handles import CallThread, Handles, StoreLike, name_of, text_of
from mulligan.integrations.typed_values import TypedValues
from mulligan.model import Checkpoint
from mulligan.session import Session
from mulligan.upkeep import delete_checkpoints

KIND = "agent-framework"
"""The kind of the checkpoints, and how names of sessions begin."""

CHECKPOINT = "workflow"
"""The component with what each checkpoint holds."""

VERSIONS = "workflow_versions"
"""How often the checkpoints that were saved again were saved, by their ids."""

DELETED = "workflow_deleted"
"""The ids of the checkpoints that were deleted, and the version that was."""

TRUSTED = ("agent_framework.", "agent_framework_orchestrations.", "openai.types.")


class MulliganCheckpointStorage:
    """A checkpoint storage of the Agent Framework; nothing is pickled.

    Values of a workflow are plain values, dataclasses, pydantic models, enums and other objects
    that are nothing but their attributes. ``allowed_checkpoint_types`` limits which classes of
    your own are read back, each as ``module:name``; by default, all of the modules that are
    loaded.
    """

    def __init__(
        self,
        store: StoreLike,
        name: str = "workflows",
        *,
        allowed_checkpoint_types: Iterable[str] | None = None,
    ) -> None:
        """Use an open store, or open that of a directory; ``name`` is for several storages."""
        self._handles = Handles(store)
        self._name = name_of(KIND, text_of(name, "A name"))
        self._thread = CallThread("mulligan-agent-framework")
        self._values = TypedValues(allowed_checkpoint_types, TRUSTED, keeps_order=True)

    @property
    def timeline(self) -> Session:
        """The Mulligan session, for checkpoints, restores and forks; its calls block."""
        return self._handles.session(self._name)

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        """Store a checkpoint and return its id; one with the same id is replaced."""
        # Written here, not in the thread: the workflow may change its values meanwhile.
        try:
            values = {
                name: self._values.to_plain(value) for name, value in checkpoint.to_dict().items()
            }
        except UnstorableValue as error:
            raise WorkflowCheckpointException(f"{error} {error.hint}") from error
        await self._thread.run(self._save, str(checkpoint.checkpoint_id), values)
        return str(checkpoint.checkpoint_id)

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        """Return a checkpoint; raises ``WorkflowCheckpointException`` if there is none."""
        found = await self._thread.run(self._find, checkpoint_id)
        if found is None:
            raise WorkflowCheckpointException(f"No checkpoint found with ID {checkpoint_id}")
        return await self._thread.run(self._loaded, found)

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """Return the checkpoints of a workflow, oldest first."""
        found = await self._thread.run(self._of, workflow_name)
        return [await self._thread.run(self._loaded, checkpoint) for checkpoint in found]

    async def delete(self, checkpoint_id: str) -> bool:
        """Delete a checkpoint; False if there is none."""
        return await self._thread.run(self._delete, checkpoint_id)

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """Return the newest checkpoint of a workflow; None if there is none."""
        found = await self._thread.run(self._of, workflow_name)
        if not found:
            return None
        latest = max(found, key=lambda checkpoint: datetime.fromisoformat(_data(checkpoint)[2]))
        return await self._thread.run(self._loaded, latest)

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        """Return the ids of the checkpoints of a workflow, oldest first."""
        found = await self._thread.run(self._of, workflow_name)
        return [_data(checkpoint)[0] for checkpoint in found]

    async def resume_input(self, workflow: Any, message: Any) -> dict[str, Any]:
        """Return what to pass to ``Workflow.run`` so that an interrupted program goes on.

        It is the latest checkpoint of the workflow, if messages are still to be delivered there or
        a request waits for an answer; the message otherwise. Either way with this storage.
        """
        latest = await self.get_latest(workflow_name=workflow.name)
        if latest is not None and (latest.messages or latest.pending_request_info_events):
            return {"checkpoint_id": latest.checkpoint_id, "checkpoint_storage": self}
        return {"message": message, "checkpoint_storage": self}

    def close(self) -> None:
        """Close the store, if it was opened here."""
        self._handles.close()

    def _save(self, id: str, values: dict[str, Any]) -> None:
        session = self.timeline
        # The framework saves an id again, maybe in another process at the same time, and a key is
        # given once: the one that finds it taken uses the next version.
        while True:
            version = self._version(id)
            data = {
                "checkpoint_id": id,
                "workflow_name": values["workflow_name"],
                "timestamp": values["timestamp"],
                "version": version,
            }
            try:
                with session.batch() as batch:
                    session.state.put(CHECKPOINT, values)
                    batch.checkpoint(KIND, key=_key(id, version), data=data)
                return
            except KeyTaken:
                session.state.set((VERSIONS, id), version + 1)

    def _find(self, id: str) -> Checkpoint | None:
        find = self.timeline.checkpoints.find
        version = self._version(id)
        found = find(_key(id, version)) or find(_key(id, version - 1))
        return None if found is None or self._is_gone(found) else found

    def _version(self, id: str) -> int:
        """Return the version that the next checkpoint with an id has, or the newest one."""
        state = self.timeline.state
        return int(max(state.get((VERSIONS, id), 1), state.get((DELETED, id), 0) + 1))

    def _of(self, workflow_name: str) -> list[Checkpoint]:
        found: dict[str, Checkpoint] = {}
        for checkpoint in self.timeline.checkpoints(kind=KIND):
            id, name, _, _ = _data(checkpoint)
            if name == workflow_name:
                found[id] = checkpoint  # one that was saved again is the one that counts
        return [checkpoint for checkpoint in found.values() if not self._is_gone(checkpoint)]

    def _is_gone(self, checkpoint: Checkpoint) -> bool:
        id, _, _, version = _data(checkpoint)
        return bool(self.timeline.state.get((DELETED, id), 0) >= version)

    def _loaded(self, checkpoint: Checkpoint) -> WorkflowCheckpoint:
        values = self.timeline.state.at(checkpoint).get(CHECKPOINT)
        try:
            return WorkflowCheckpoint.from_dict(
                {name: self._values.from_plain(value) for name, value in values.items()}
            )
        except UnstorableValue as error:
            raise WorkflowCheckpointException(f"{error} {error.hint}") from error

    def _delete(self, id: str) -> bool:
        found = self._find(id)
        if found is None:
            return False
        self.timeline.state.set((DELETED, id), _data(found)[3])
        # The newest one of a session, and one that a fork or an undo needs, stays hidden.
        with suppress(CheckpointNeeded):
            delete_checkpoints(self._handles.store, self.timeline, [found])
        return True


def _key(id: str, version: int) -> str:
    return id if version == 1 else f"{id}#{version}"


def _data(checkpoint: Checkpoint) -> tuple[str, str, str, int]:
    """Return id, workflow, time and version of a checkpoint."""
    data = checkpoint.data or {}
    return data["checkpoint_id"], data["workflow_name"], data["timestamp"], data["version"]
