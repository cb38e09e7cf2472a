"""What a durable session for the OpenAI Agents SDK refuses, and how a run can end. Knows nothing of the SDK."""

from __future__ import annotations

from reconciler.errors import RunnerFault


class SdkUnsupported(RunnerFault, ImportError):
    """The OpenAI Agents SDK is missing, or in a version that this integration was not tested with."""

    code = "sdk_unsupported"


class SessionBusy(RunnerFault):
    """Others work on the session, or its earlier work waits for a decision."""

    code = "session_busy"
    safe_to_retry = True
    default_hint = (
        "wait and call again with the same submission id; where nobody works on it, a daemon (`reconciler run`) or one"
        " pass (`reconciler once`) has to decide first"
    )


class NotWriteAhead(RunnerFault):
    """The SDK's own Runner was given a durable session: it would record calls after their tools ran."""

    code = "not_write_ahead"
    default_hint = "call `session.run(agent, input)` or `session.run_streamed(agent, input)` instead"


class ToolUnsupported(RunnerFault):
    """The model called a local tool that is no function tool: its result could not be recorded as one."""

    code = "tool_unsupported"
    default_hint = "wrap it into a function tool (`agents.function_tool`)"


class ResultNotStorable(RunnerFault):
    """A tool ran, and its result cannot be stored."""

    code = "result_not_storable"
    default_hint = "return text, or something that its text says all about"


class ApprovalUnsupported(RunnerFault):
    """A tool waits for a person's approval, which a durable run cannot wait for yet."""

    code = "approval_unsupported"
    default_hint = "ask inside the tool, or give the agent tools that need no approval"


class AgentUnknown(RunnerFault):
    """A submission was begun by an agent that this program doesn't hand off to."""

    code = "agent_unknown"
    default_hint = "run it with the agent that it was submitted with"


class ForeignSubmission(RunnerFault):
    """The session has work or entries that another kind of runner wrote."""

    code = "foreign_submission"
    default_hint = "use a session of its own for this agent"


class RunFailed(RunnerFault):
    """The submission is settled failed: nothing is left to run."""

    code = "run_failed"
    default_hint = "`reconciler explain` tells why; submit it again under another id"


class RunAborted(RunnerFault):
    """The submission was aborted: nothing is left to run."""

    code = "run_aborted"
    default_hint = "submit it again under another id"
