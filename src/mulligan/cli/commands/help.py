"""mulligan help."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

import mulligan
from mulligan.cli.context import Command, example
from mulligan.cli.render.streams import terminal_columns

GUIDES = {
    "claude-code": ("guide-claude-code.md", "Claude Code: set-up, and what its hooks record."),
    "rewinding": (
        "guide-rewind.md",
        "A coding agent back to an earlier prompt, and on from there.",
    ),
    "coding": (
        "guide-coding-agents.md",
        "What is the same for all coding agents; any program.",
    ),
    "codex": ("guide-codex.md", "Codex: set-up, and rewinding it."),
    "gemini": ("guide-gemini.md", "Gemini CLI: set-up, and rewinding it."),
    "opencode": ("guide-opencode.md", "opencode: set-up, and rewinding it."),
    "agents": ("guide-agents.md", "Agents, tasks, mail, workflow files."),
    "files": ("guide-files.md", "Which files checkpoints hold, and how they are restored."),
    "values": ("guide-state.md", "The state: values, long lists, walks over the past."),
    "outside": ("guide-effects.md", "What rollback cannot undo: steps, effects, approval, tools."),
    "mcp-server": ("guide-mcp.md", "Mulligan as an MCP server: set-up, tools, resources."),
    "frameworks": ("integrations.md", "All adapters for frameworks, and what was tested of them."),
    "langgraph": ("guide-langgraph.md", "LangGraph: a checkpointer, with files."),
    "openai-agents": ("guide-openai-agents.md", "OpenAI Agents SDK: sessions, durable agents."),
    "claude-agent-sdk": ("guide-claude-agent-sdk.md", "Claude Agent SDK: a session store."),
    "pydantic-ai": ("guide-pydantic-ai.md", "pydantic-ai: conversations, durable runs."),
    "google-adk": ("guide-google-adk.md", "Google ADK: a session service, durable tools."),
    "agent-framework": (
        "guide-agent-framework.md",
        "Microsoft Agent Framework: checkpoint storage.",
    ),
    "smolagents": ("guide-smolagents.md", "smolagents: a step callback."),
    "loops": ("guide-loops.md", "Loops of your own, with litellm or any other model."),
    "opentelemetry": ("guide-opentelemetry.md", "Spans and metrics; Prometheus."),
    "recovery": ("guide-recovery.md", "What happens after a crash."),
    "upkeep": ("guide-upkeep.md", "Looking after a store."),
    "signals": ("drift.md", "When a run goes wrong: signals of drift, and responses."),
    "completion": ("completion.md", "Completing commands, points and sessions in the shell."),
    "json": ("cli-json.md", "Every field of --json, and all exit codes."),
    "format": ("FORMAT.md", "Every byte on disk."),
}
"""The guides in the package, by the names that hints use."""


_ITEM = re.compile(r" *(?:[-*]|\d+\.) ")
_MARKER = re.compile(r" *(?:(?:[-*]|\d+\.) +)?")
"""How an item of a list begins, and how far its other lines are indented."""


def _complete(context: click.Context, param: click.Parameter, start: str) -> list[str]:
    """Return the commands and guides with a given prefix, for shells."""
    root = context.find_root()
    commands = root.command.list_commands(root) if isinstance(root.command, click.Group) else []
    return [name for name in (*commands, *GUIDES) if name.startswith(start)]


@click.command("help", cls=Command, epilog=example("mulligan help restore", "mulligan help agents"))
@click.argument("topic", nargs=-1, metavar="[COMMAND|GUIDE]", shell_complete=_complete)
@click.pass_context
def command(context: click.Context, topic: tuple[str, ...]) -> None:
    """Show the help of a COMMAND, or a GUIDE; without an argument, list both."""
    if not topic:
        _print_overview(context)
    elif len(topic) == 1 and (name := _guide_of(context, topic[0])) is not None:
        text = guide(name)
        # Elsewhere it is Markdown for another program.
        click.echo(for_terminal(text, terminal_columns()) if sys.stdout.isatty() else text)
    else:
        _print_help(context, topic)


def _guide_of(context: click.Context, topic: str) -> str | None:
    """Return the guide of that name, or with that file, as links in guides say it."""
    if topic in GUIDES:
        return topic
    root = context.find_root()
    if isinstance(root.command, click.Group) and topic in root.command.list_commands(root):
        return None
    return next((n for n, (file, _) in GUIDES.items() if topic in (file, Path(file).stem)), None)


def guide(name: str) -> str:
    """Return the text of a guide, from the installed package or from a checkout."""
    package = Path(mulligan.__file__).parent
    shipped, checkout = package / "docs", package.parents[1] / "docs"
    directory = shipped if shipped.is_dir() else checkout
    return (directory / GUIDES[name][0]).read_text("utf-8").rstrip()


def for_terminal(text: str, width: int) -> str:
    """Return Markdown with paragraphs and lists broken between words; tables and code stay."""
    import textwrap  # slow to import

    shown: list[str] = []
    paragraph: list[str] = []
    is_code = False

    def end_paragraph() -> None:
        if paragraph:
            indent = " " * len(_MARKER.match(paragraph[0])[0])  # type: ignore[index]
            whole = " ".join([paragraph[0].rstrip(), *(line.strip() for line in paragraph[1:])])
            shown.extend(
                textwrap.wrap(
                    whole,
                    width,
                    subsequent_indent=indent,
                    break_long_words=False,
                    break_on_hyphens=False,
                )
            )
            paragraph.clear()

    for line in text.split("\n"):
        is_fence = line.lstrip().startswith("```")
        is_code ^= is_fence
        if is_code or is_fence or not line.strip() or line.startswith(("|", "#", "<")):
            end_paragraph()
            shown.append(line)
            continue
        if _ITEM.match(line):
            end_paragraph()
        paragraph.append(line)
    end_paragraph()
    return "\n".join(shown)


def _print_overview(context: click.Context) -> None:
    click.echo(context.find_root().get_help())
    formatter = context.make_formatter()
    with formatter.section("\nGuides, shown by `mulligan help GUIDE`"):
        formatter.write_dl([(name, about) for name, (_, about) in GUIDES.items()])
    click.echo(formatter.getvalue().rstrip())


def _print_help(context: click.Context, names: tuple[str, ...]) -> None:
    parent, found = context.find_root(), context.find_root().command
    for name in names:
        inner = found.get_command(parent, name) if isinstance(found, click.Group) else None
        if inner is None:
            raise click.UsageError(
                f"There is no command or guide {' '.join(names)!r}; the guides are "
                f"{', '.join(GUIDES)}."
            )
        parent, found = click.Context(inner, info_name=name, parent=parent), inner
    click.echo(found.get_help(parent))
