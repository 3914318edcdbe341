"""Records docs/rewind.svg: a rewind of the real Claude Code, on a terminal, with its real output.

    make .agents/.ready && .venv/bin/python -m tests.agents.record_rewind .agents docs/rewind.svg

Every command in the picture is run as it is shown. The answers of the model come from a script.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path
from xml.sax.saxutils import escape

from tests.agents.conftest import CLAUDE, ClaudeCode
from tests.agents.model_apis import Block
from tests.agents.model_server import ModelServer, text, tool

COLUMNS, LINE, CHARACTER, MARGIN = 96, 19, 8.43, 22

COLOURS = {
    "30": "#6e7681",
    "31": "#ff7b72",
    "32": "#7ee787",
    "33": "#f2cc60",
    "34": "#79c0ff",
    "35": "#d2a8ff",
    "36": "#76e3ea",
}
PLAIN, DIM, BACK = "#d6dde6", "#8b949e", "#0d1117"

PERMISSIONS = '{"permissions": {"allow": ["Bash", "Write", "Edit", "Read"]}}'

PARSER = """def read(path):
    return dict(line.split("=", 1) for line in open(path))
"""
TESTS = """import config

def test_read(tmp_path):
    (tmp_path / "c").write_text("a=1")
    assert config.read(tmp_path / "c") == {"a": "1"}
"""
STRICT = """def read(path, strict=False):
    lines = [line for line in open(path) if strict or "=" in line]
    return dict(line.split("=", 1) for line in lines)
"""


class Model(ModelServer):
    """A model whose answers are chosen by what the newest prompt says."""

    def __init__(self, project: Path) -> None:
        super().__init__()
        self._project = project

    def on(self, said: str, *turns: list[Block]) -> None:
        """Answer a prompt with these turns."""
        self.scripts[said] = turns

    def write(self, name: str, content: str) -> Block:
        """Return a call that writes a file of the project."""
        return tool("Write", file_path=str(self._project / name), content=content)

    def chosen(self, said: str) -> str | None:
        """Return the prompt that a message is."""
        return next((key for key in self.scripts if key in said), None)


class Terminal:
    """Runs commands on a terminal, and keeps what they show."""

    def __init__(self, directory: Path, variables: dict[str, str]) -> None:
        self._directory, self._variables = directory, variables
        self.lines: list[str] = []

    def run(self, command: str) -> str:
        """Run a command as a person types it, agreeing to every question; return its output."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
        started = subprocess.Popen(
            ["/bin/bash", "-c", command],
            cwd=self._directory,
            env=self._variables,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        shown = b""
        while True:
            try:
                shown += os.read(ours, 4096)
            except OSError:  # the other side of the terminal is closed
                break
            if shown.endswith(b"[Y/n]: "):
                os.write(ours, b"y\n")
        os.close(ours)
        if started.wait() != 0:
            raise SystemExit(f"{command} failed:\n{shown.decode()}")
        # Programs also ask and set up the terminal; only colours are shown.
        output = re.sub(r"\x1b(?:\[[0-9;?<>=]*[A-Zac-ln-z]|[^\[])", "", shown.decode())
        output = output.replace("\r\n", "\n")
        self.lines += [
            f"\x1b[32m$\x1b[0m \x1b[1m{command}\x1b[0m",
            *output.rstrip().split("\n"),
            "",
        ]
        return output


def spans(line: str) -> str:
    """Return a line with its colours as the content of an SVG text."""
    made, colour, bold = [], PLAIN, False
    for part in re.split(r"(\x1b\[[0-9;?]*[A-Za-z])", line):
        if part.startswith("\x1b"):
            for code in part[2:-1].split(";") if part.endswith("m") else ():
                if code in ("", "0"):
                    colour, bold = PLAIN, False
                elif code == "1":
                    bold = True
                elif code == "2":
                    colour = DIM
                colour = COLOURS.get(code, colour)
        elif part:
            weight = ' font-weight="bold"' if bold else ""
            made.append(f'<tspan fill="{colour}"{weight}>{escape(part)}</tspan>')
    return "".join(made)


def svg(lines: list[str]) -> str:
    """Return lines of a terminal as an SVG with plain text in it."""
    width, top = int(COLUMNS * CHARACTER + 2 * MARGIN), 52
    height = top + LINE * len(lines) + MARGIN // 2
    dots = "".join(
        f'<circle cx="{MARGIN + 18 * number}" cy="22" r="6" fill="{colour}"/>'
        for number, colour in enumerate(("#ff5f56", "#ffbd2e", "#27c93f"))
    )
    rows = "\n".join(
        f'<text x="{MARGIN}" y="{top + LINE * number}" xml:space="preserve">{spans(line)}</text>'
        for number, line in enumerate(lines)
        if line
    )
    font = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="{font}" font-size="14">\n'
        "<title>mulligan rewind: files and conversation of Claude Code go back together</title>\n"
        f'<rect width="{width}" height="{height}" rx="10" fill="{BACK}"/>\n{dots}\n{rows}\n</svg>\n'
    )


def record(agents: Path) -> list[str]:
    """Run the story; return what the terminal showed."""
    home = Path(tempfile.gettempdir(), "demo")  # its name is in the picture
    home.mkdir()
    try:
        claude = ClaudeCode(agents.absolute() / CLAUDE, home, "")
        (home / "bin").mkdir()
        (home / "bin/claude").symlink_to(claude.program)
        (home / ".claude").mkdir()
        (home / ".claude/settings.json").write_text(PERMISSIONS)
        with Model(claude.project) as model:
            path = f"{home / 'bin'}:{claude.variables['PATH']}"
            claude.variables |= {"ANTHROPIC_BASE_URL": model.url, "PATH": path}
            claude.install()
            return story(model, Terminal(claude.project, claude.variables), claude)
    finally:
        shutil.rmtree(home)


def story(model: Model, terminal: Terminal, claude: ClaudeCode) -> list[str]:
    """Give three prompts, go back to before the third, and continue differently."""
    parser, tests = model.write("config.py", PARSER), model.write("test_config.py", TESTS)
    rewrite = tool("Bash", command="rm test_config.py; mkdir ini; mv config.py ini/")
    strict = model.write("config.py", STRICT)
    model.on("Write a parser", [parser], [text("config.py reads key=value lines.")])
    model.on("Add tests", [tests], [text("One test, and it passes.")])
    model.on("Rewrite it", [rewrite], [text("I moved everything, and dropped the tests.")])
    model.on("Keep it", [strict], [text("config.read() has a strict option now.")])
    terminal.run('claude -p "Write a parser for config files"')
    (id,) = claude.ids()
    terminal.run(f'claude -p "Add tests for it" --resume {id}')
    terminal.run(f'claude -p "Rewrite it for INI files" --resume {id}')
    terminal.lines = terminal.lines[-3:]
    terminal.run("mulligan rewind")
    said = terminal.run("mulligan rewind --to 3")
    (command,) = re.findall(r"claude --resume [0-9a-f-]{36}(?=\x1b)", said)
    terminal.run(f'{command} -p "Keep it, but add a strict option"')
    terminal.run("ls")
    terminal.run("mulligan rewind")
    return terminal.lines[:-1]


def main() -> None:
    """Record, and write the picture."""
    agents, target = map(Path, sys.argv[1:3])
    target.write_text(svg(record(agents)))


if __name__ == "__main__":
    main()
