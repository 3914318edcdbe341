"""Errors of agents at work: leases, tasks, drift, recovery and effects."""

from __future__ import annotations

from mulligan.errors.base import MulliganError


class LeaseError(MulliganError):
    """A writer's lease could not be taken or kept."""


class LeaseHeld(LeaseError):
    """Another live writer holds the lease."""

    exit_code = 50
    retryable = True
    default_hint = "Wait until it expires or its holder ends, or take it over with steal=True."


class StaleLease(LeaseError):
    """This writer was replaced; its writes are no longer accepted."""

    exit_code = 51
    default_hint = "Stop this process. Its successor continues from the journal's head."


class TaskError(MulliganError):
    """A task, a message or an agent cannot be used as requested."""


class UnknownTask(TaskError):
    """There is no task with that id."""

    exit_code = 90
    default_hint = "`mulligan tasks` lists the tasks of a session."


class InvalidTask(TaskError):
    """A task, a message or the state of an agent is not valid."""

    exit_code = 91
    default_hint = "Nothing was written."


class NotAttached(TaskError):
    """This process was not started for an agent."""

    exit_code = 92
    default_hint = "Start it with `mulligan run -- CMD`, or open the store with mulligan.open()."


class InvalidWorkflow(TaskError):
    """A workflow is not valid."""

    exit_code = 93
    default_hint = "Nothing was started. `mulligan help agents` lists every key of a workflow."


class NotRunning(TaskError):
    """No supervisor runs the session, or it does not respond."""

    exit_code = 94
    default_hint = (
        "`mulligan status` shows what runs; `mulligan up` or `mulligan resume` continues."
    )


class DriftError(MulliganError):
    """Something about the detection of drift."""


class InvalidTrace(DriftError):
    """A file of recorded runs cannot be read."""

    exit_code = 110
    default_hint = (
        "`mulligan help signals` describes the format: one JSON object per line, with steps."
    )


class InvalidSignal(DriftError):
    """An installed package offers a signal that cannot be used, or that failed."""

    exit_code = 111
    default_hint = "Fix or remove the package that offers it, or turn it off in [drift]."


class AgentIsolated(DriftError):
    """The agent went wrong so often that it is not started again until a person says so."""

    exit_code = 112
    default_hint = (
        "Nothing is lost. `mulligan drift --explain` shows what happened; "
        "`mulligan drift release AGENT` lets it go on."
    )


class RecoveryError(MulliganError):
    """A session cannot be recovered as requested."""


class StillRunning(RecoveryError):
    """A live supervisor runs the session."""

    exit_code = 100
    default_hint = "Nothing was changed. `mulligan pause` stops it at a safe point first."


class RecoveryStopped(RecoveryError):
    """Every way to recover the session was tried and failed."""

    exit_code = 101
    default_hint = (
        "Nothing is lost. Choose a point in `mulligan log`, then `mulligan resume --from POINT`."
    )


class DrillFailed(RecoveryError):
    """A drill could not bring back everything that the point holds."""

    exit_code = 102
    default_hint = (
        "Nothing was changed. `mulligan verify --full` lists all damage; `mulligan drill POINT` "
        "tries an earlier point."
    )


class EffectError(MulliganError):
    """An effect, a step or a tool call is not possible as requested.

    ``effect`` is the id of the effect, where the error is about one.
    """

    def __init__(self, message: str, *, hint: str | None = None, effect: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.effect = effect


class UnknownEffect(EffectError):
    """There is no effect, and no tool call, of that id."""

    exit_code = 113
    default_hint = "`mulligan effects` lists the effects of a session, `mulligan tools` the calls."


class InvalidEffect(EffectError):
    """An effect, a rule, an answer or a step that cannot be meant."""

    exit_code = 114
    default_hint = "Nothing was written."


class EffectInDoubt(EffectError):
    """Whether the effect happened is not known: its process died while it acted."""

    exit_code = 115
    default_hint = (
        "Nothing was done again. Check outside, then `mulligan effects settle ID done|failed`."
    )


class EffectDenied(EffectError):
    """The effect must not happen."""

    exit_code = 116
    default_hint = "Nothing was done. `mulligan effects` shows who decided, and why."


class ApprovalPending(EffectError):
    """The effect waits for approval; the same call goes on once there is an answer."""

    exit_code = 117
    retryable = True
    default_hint = "`mulligan approve ID` or `mulligan deny ID` answers; then call it again."


class EffectRepeated(EffectError):
    """The same effect was done beyond the point that the session went back to."""

    exit_code = 118
    default_hint = 'Choose: repeat="reuse" takes its result, repeat="allow" does it again.'


class LeftBehind(EffectError):
    """A restore would leave effects behind that cannot be undone."""

    exit_code = 119
    default_hint = "Nothing was changed. Accept it: accept_left_behind=True, --accept-left-behind."


class CompensationFailed(EffectError):
    """The undo of an effect failed, so nothing was restored."""

    exit_code = 120
    default_hint = "Nothing was restored. Restore again: it goes on with this effect."


class StepChanged(EffectError):
    """A step is recorded with other arguments than it is called with."""

    exit_code = 121
    default_hint = (
        'Nothing ran. Choose: session.durable(changed="reuse") or changed="rerun", or another name.'
    )
