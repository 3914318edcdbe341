"""What every benchmark shares: its settings, its targets, its tables and its command line."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

Cell = str | float | int | None
Row = Mapping[str, Cell]

WORKPLACE = Path(".bench")
"""Here and not in the system's temporary directory, which is often in memory."""

PAGE_WIDTH = 110


@dataclass(frozen=True, slots=True)
class Setting:
    """How one benchmark is run: where it may write, and whether in a hurry."""

    directory: Path
    quick: bool

    def choose(self, full: int, quick: int) -> int:
        """A size that depends on the hurry."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Target:
    """One promise about one measure, with a bound on one side.

    A quick run leaves out sizes that take long, and with them the targets that are for full runs.
    """

    measure: str
    promise: str
    at_most: float | None = None
    at_least: float | None = None
    unit: str = ""
    full_only: bool = False

    def met_by(self, value: float) -> bool:
        """Whether a measured value keeps the promise."""
        low = self.at_least is None or value >= self.at_least
        high = self.at_most is None or value <= self.at_most
        return low and high

    @property
    def bound(self) -> str:
        """The bound as a reader writes it, such as ``≤ 1.5×``."""
        if self.at_most is not None:
            return f"≤ {self.at_most:g}{self.unit}"
        return f"≥ {self.at_least:g}{self.unit}"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under the names of their columns, and what a reader must know about them."""

    title: str
    rows: Sequence[Row]
    notes: Sequence[str] = ()


@dataclass(slots=True)
class Result:
    """What a benchmark found: tables for people, measures for targets.

    A measure that could not be taken is absent, never guessed.
    """

    tables: list[Table] = field(default_factory=list)
    measures: dict[str, float] = field(default_factory=dict)

    def measure(self, name: str, value: float | None) -> None:
        """Note a measure, if it was taken."""
        if value is not None:
            self.measures[name] = value


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A topic: its name on the command line, its targets and how it is run."""

    name: str
    title: str
    targets: Sequence[Target]
    run: Callable[[Setting], Result]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target beside what was measured."""

    target: Target
    value: float | None

    @property
    def met(self) -> bool:
        """Whether the target was measured and kept."""
        return self.value is not None and self.target.met_by(self.value)

    @property
    def sentence(self) -> str:
        """The verdict in words, for the list of missed targets."""
        found = "not measured" if self.value is None else f"{self.value:.3g}{self.target.unit}"
        return f"{self.target.promise}: {found}, target {self.target.bound}"


def judge(targets: Sequence[Target], measures: Mapping[str, float]) -> list[Verdict]:
    """Put every target beside its measure."""
    return [Verdict(target, measures.get(target.measure)) for target in targets]


def main(*benchmarks: Benchmark, argv: Sequence[str] | None = None) -> int:
    """Run benchmarks from the command line; 1 when ``--check`` finds a target missed."""
    options = _parse(benchmarks, argv)
    # Installed packages have their bytecode. Containers often turn that off, and then every process
    # that is measured compiles what it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    console = _console()
    console.print(Text(describe_machine(), style="dim"))
    records, missed = [], []
    for benchmark in benchmarks:
        result = _run(benchmark, options.quick, console)
        targets = [t for t in benchmark.targets if not (t.full_only and options.quick)]
        verdicts = judge(targets, result.measures)
        _show(benchmark, result, verdicts, console)
        records.append(_record(benchmark, result, verdicts, options.quick))
        missed += [f"{benchmark.name}: {v.sentence}" for v in verdicts if not v.met]
    if options.json:
        options.json.write_text(_document(records), encoding="utf-8")
    if not options.check:
        return 0
    for sentence in missed:
        print(f"missed: {sentence}", file=sys.stderr)
    return 1 if missed else 0


def describe_machine() -> str:
    """One line that says where the figures come from."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{python} · {platform.system()} {platform.machine()} · {os.cpu_count()} cores"


def _parse(benchmarks: Sequence[Benchmark], argv: Sequence[str] | None) -> argparse.Namespace:
    alone = len(benchmarks) == 1
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks" + (f".{benchmarks[0].name}" if alone else ""),
        description=benchmarks[0].title if alone else "Every benchmark, one after the other.",
    )
    parser.add_argument("--quick", action="store_true", help="smaller sizes, fewer rounds")
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here too")
    return parser.parse_args(argv)


def _console() -> Console:
    """As wide as the terminal; in a file or a pipe, wide enough for every table."""
    console = Console()
    return console if console.is_terminal else Console(width=PAGE_WIDTH)


def _run(benchmark: Benchmark, quick: bool, console: Console) -> Result:
    WORKPLACE.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix=f"{benchmark.name}-", dir=WORKPLACE) as directory,
        console.status(f"{benchmark.title} …"),
    ):
        return benchmark.run(Setting(Path(directory).resolve(), quick))


def _show(
    benchmark: Benchmark, result: Result, verdicts: Sequence[Verdict], console: Console
) -> None:
    console.rule(benchmark.title, align="left")
    for table in result.tables:
        console.print(_render(table))
        for note in table.notes:
            console.print(Text(f"  {note}", style="dim"))
    for verdict in verdicts:
        mark, style = ("✓", "green") if verdict.met else ("✗", "red")
        console.print(Text(f"  {mark} {verdict.sentence}", style=style))
    console.print()


def _render(table: Table) -> RichTable:
    rendered = RichTable(title=table.title, title_justify="left", title_style="bold")
    columns = list(dict.fromkeys(name for row in table.rows for name in row))
    for index, name in enumerate(columns):
        rendered.add_column(name, justify="right" if index else "left", no_wrap=index == 0)
    for row in table.rows:
        rendered.add_row(*(_text(row.get(name)) for name in columns))
    return rendered


def _text(cell: Cell) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:#.3g}".rstrip(".")
    return f"{cell:,}" if isinstance(cell, int) else cell


def _record(
    benchmark: Benchmark, result: Result, verdicts: Sequence[Verdict], quick: bool
) -> dict[str, Any]:
    return {
        "name": benchmark.name,
        "title": benchmark.title,
        "quick": quick,
        "tables": [
            {"title": t.title, "rows": [dict(row) for row in t.rows], "notes": list(t.notes)}
            for t in result.tables
        ],
        "measures": result.measures,
        "targets": [
            {
                "measure": verdict.target.measure,
                "promise": verdict.target.promise,
                "bound": verdict.target.bound,
                "value": verdict.value,
                "met": verdict.met,
            }
            for verdict in verdicts
        ],
    }


def _document(records: Sequence[Mapping[str, Any]]) -> str:
    document = {"machine": describe_machine(), "benchmarks": records}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
