"""Imports point down, heavy drivers stay in their own modules, and only the top reads the world."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import mulligan

SOURCE = Path(mulligan.__file__).parent

LAYERS = [
    {"errors", "decoding", "owner"},
    {"failpoints", "clock", "model", "procfs", "redact", "config", "attempts"},
    {"codec"},
    {"layout", "journal", "objects", "pins", "storage_limit"},
    {"locate", "locked_notes"},
    {"engine"},
    {"document"},
    {"workspace"},
    {"timeline"},
    {"check"},
    {"drift"},
    {"session"},
    {"store"},
    {"upkeep"},
    {"opener", "session_directory", "default_session"},
    {"make_store", "move_store", "repair"},
    {"__init__"},
    {"aio_worker"},
    {"aio"},
    {"recovery"},
    {"supervisor"},
    {"coding"},
    {"views"},
    {"integrations"},
    {"resident"},
    {"mcp"},
    {"testing"},
    {"cli"},
    {"__main__"},
]
"""From the bottom. A module may import from its own part and from the layers below it."""

INNER = {
    "upkeep": [
        {"slices", "lock", "record", "recorded", "tree_walk", "known_lost"},
        {"space", "drill", "verify", "heal"},
        {"retention", "purge"},
        {"maintain", "usage"},
        {"background"},
        {"__init__"},
    ],
    "upkeep.space": [
        {"needed", "grace", "mark", "layout_plan"},
        {"fold", "deleted", "gc", "free"},
        {"reclaim_space"},
    ],
    "upkeep.retention": [
        {"policy"},
        {"rulings"},
        {"candidates", "freed"},
        {"prune"},
        {"delete_checkpoints"},
    ],
    "upkeep.drill": [{"record", "files", "scratch", "state"}, {"commands"}, {"run"}],
    "upkeep.verify": [{"settings", "record"}, {"background"}],
    "repair": [{"ends", "originals"}, {"files", "trial"}, {"store"}],
    "drift": [
        {"observation", "settings"},
        {"signals"},
        {"registry"},
        {"detector", "trace", "table", "journal"},
        {"replay", "ladder"},
        {"handover"},
    ],
    "coding": [
        {"agent_json", "agent_process", "hook_log"},
        {"hook_input"},
        {"mcp_input", "claude", "tool_policy"},
        {"settings"},
        {"transcripts"},
        {"agent_session"},
        {"rewind", "recorder"},
        {"hooks"},
        {"doctor", "follow"},
        {"__init__"},
    ],
    "coding.transcripts": [
        {"transcript", "transcript_format", "transcript_draft"},
        {"claude_transcript", "codex_transcript", "gemini_transcript", "opencode_transcript"},
        {"claude_folder", "opencode_database"},
        {"transcript_formats"},
    ],
    "coding.settings": [
        {"settings_file"},
        {"additions", "hook_groups"},
        {"put_back"},
        {"claude_settings", "codex_settings", "gemini_settings", "opencode_settings"},
        {"install"},
    ],
    "coding.rewind": [{"target", "own_restore"}, {"run"}, {"find_session"}],
    "config": [{"values", "text"}, {"tables"}, {"lines"}],
    "journal": [
        {"protocol", "chain", "lock_owner", "records"},
        {"table_protocol"},
        {"lmdb", "memory", "found_records", "copies"},
        {"rebuild_chain"},
        {"rebuild_purges"},
        {"rebuild"},
        {"kv_view"},
        {"kv_removal"},
        {"kv_transaction"},
        {"kv_deletion"},
        {"kv"},
    ],
    "locate": [{"identity", "git", "small_json"}, {"project"}, {"pointer", "registry"}, {"find"}],
    "workspace": [
        {"entries", "syscalls", "workers", "beneath", "file_handles"},
        {"handles"},
        {"fsync"},
        {"capture"},
        {"watch"},
        {"restore"},
        {"checkout"},
        {"locks", "root_state"},
        {"workspace"},
    ],
    "mcp": [
        {"messages", "schemas", "inputs", "outputs", "lanes", "instructions", "hooks"},
        {"versions", "project", "plans", "search", "changes"},
        {"tools", "resources"},
        {"toolbox"},
        {"server"},
    ],
    "resident": [
        {"place", "messages", "version", "client"},
        {"server", "start", "install", "health", "serving"},
        {"__main__"},
    ],
    "session": [
        {
            "names",
            "arguments",
            "intervals",
            "tool_versions",
            "components",
            "effect_rules",
            "occurrences",
        },
        {"environment"},
        {"write"},
        {"runtime"},
        {"state_view"},
        {"walk"},
        {"history"},
        {"comparer"},
        {"file_side"},
        {"checkpoint_taker"},
        {"parts"},
        {"acts"},
        {"internals"},
        {"session"},
        {"__init__"},
    ],
}
"""The same within a package: what is in it, from the bottom."""

DRIVERS = {
    "lmdb": {"journal/lmdb/", "testing/"},
    "backports": {"codec.py"},
    "click": {"cli/"},
    "pytest": {"testing/"},
    "hypothesis": set(),
    "rich": set(),
}
"""Where a package may be imported; the rest is free of it."""

STORAGE = tuple(
    f"mulligan.{name}"
    for name in (
        "journal.lmdb",
        "journal.kv",
        "journal.memory",
        "journal.records",
        "objects.pack",
        "objects.frames",
        "objects.scan",
        "objects.memory",
    )
)
"""The implementations of journals and object stores."""

STORAGE_USERS = {
    "opener.py",
    "repair/ends.py",
    "repair/files.py",
    "repair/trial.py",
    "workspace/checkout/worker_main.py",
    "testing/bitrot.py",
    "testing/protections.py",
}

MODULES = sorted(SOURCE.rglob("*.py"))


def part(module: str) -> str:
    """Return which part of the package a dotted name belongs to."""
    names = module.split(".")
    return names[1] if len(names) > 1 else "__init__"


def part_of_file(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def level(name: str) -> int:
    for number, layer in enumerate(LAYERS):
        if name in layer:
            return number
    raise AssertionError(f"mulligan/{name} is in no layer: give it a place in LAYERS")


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@cache
def imports(file: Path) -> list[tuple[int, str]]:
    """Return line and dotted name of everything a file imports, inside functions too."""
    return list(_imports(file))


def _imports(file: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno} imports relatively"
            assert node.module is not None
            if node.module == "mulligan":
                for alias in node.names:
                    yield node.lineno, _resolved(alias.name)
            else:
                yield node.lineno, node.module


def _resolved(name: str) -> str:
    """Return what ``from mulligan import name`` names: a module, or something of the door's."""
    here = SOURCE / name
    is_module = here.with_suffix(".py").exists() or here.is_dir()
    return f"mulligan.{name}" if is_module else "mulligan"


def test_imports_point_down() -> None:
    """Neither to a part above nor to one beside."""
    wrong = [
        f"{file}:{line} imports {name}"
        for file in MODULES
        for line, name in imports(file)
        if name.split(".")[0] == "mulligan" and part(name) != part_of_file(file)
        if level(part(name)) >= level(part_of_file(file))
    ]
    assert wrong == []


def own_imports(file: Path) -> Iterator[tuple[int, str]]:
    """Yield what a file imports while it is loaded: not for types alone, nor inside functions."""
    for node in parsed(file).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mulligan."):
            yield node.lineno, _module_of(node)


def _module_of(node: ast.ImportFrom) -> str:
    """Return the module that an import needs, which may be the name that it imports."""
    assert node.module is not None
    here = SOURCE.joinpath(*node.module.split(".")[1:], node.names[0].name)
    is_module = here.with_suffix(".py").exists() or here.is_dir()
    return f"{node.module}.{node.names[0].name}" if is_module else node.module


@pytest.mark.parametrize("name", sorted(INNER))
def test_imports_within_a_part_point_down(name: str) -> None:
    order = {inner: number for number, layer in enumerate(INNER[name]) for inner in layer}
    home = SOURCE.joinpath(*name.split("."))
    for file in sorted(home.rglob("*.py")):
        own = file.relative_to(home).parts[0].removesuffix(".py")
        if own == "__init__" and own not in order:
            continue
        assert own in order, f"{name}.{own} has no place in INNER"
        for line, imported in own_imports(file):
            inner = imported.removeprefix(f"mulligan.{name}.").split(".")[0]
            if imported.startswith(f"mulligan.{name}.") and inner != own:
                assert order[inner] < order[own], f"{file}:{line} imports {imported}"


PLAIN = {
    "Any",
    "Ext",
    "Literal",
    "Raw",
    "bytes",
    "datetime",
    "dict",
    "int",
    "list",
    "msgspec",
    "str",
    "tuple",
}
"""Names in types that msgspec keeps nothing of."""


def _decoded_into(call: ast.Call) -> ast.expr | None:
    """Return the type that a call of msgspec decodes into; None for another call."""
    name = ast.unparse(call.func)
    if name == "msgspec.convert":
        return call.args[1]
    if name.startswith("msgspec.") and name.endswith("Decoder"):
        return call.args[0] if call.args else None
    if name.startswith("msgspec.") and name.endswith(".decode"):
        return next((each.value for each in call.keywords if each.arg == "type"), None)
    return None


def test_types_are_ready_before_any_thread_decodes_into_them() -> None:
    """Two threads that let msgspec look at a type at the same time crash the process."""
    names = {"_Entries", "type_", "RequestHeader", "HeldBy"} | PLAIN
    unready = [
        f"{file}:{node.lineno} {ast.unparse(into)}"
        for file in MODULES
        if part_of_file(file) != "testing"
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.Call) and (into := _decoded_into(node))
        if not ast.unparse(into).startswith("ready(")
        if {each.id for each in ast.walk(into) if isinstance(each, ast.Name)} - names
    ]
    assert unready == []


COMMANDS = "mulligan.cli.commands"


def test_no_module_of_the_command_line_imports_a_command() -> None:
    """What commands share lies in cli/ or cli/render/; only the name of a command loads it."""
    files = [file for file in MODULES if part_of_file(file) == "cli"]
    assert [
        f"{file}:{line} imports {name}"
        for file in files
        for line, name in imports(file)
        if f"{name}.".startswith(f"{COMMANDS}.")
    ] == []


@pytest.mark.parametrize("driver", sorted(DRIVERS))
def test_a_driver_is_imported_where_it_belongs(driver: str) -> None:
    allowed = DRIVERS[driver]
    for file in MODULES:
        place = str(file.relative_to(SOURCE))
        used = any(name.split(".")[0] == driver for _, name in imports(file))
        assert not used or any(place.startswith(prefix) for prefix in allowed), f"{place}: {driver}"


def test_storage_is_used_through_its_protocols() -> None:
    """Only what opens a store, reads packs beside it, or breaks one on purpose, names them."""
    for file in MODULES:
        place = str(file.relative_to(SOURCE))
        if part_of_file(file) in ("journal", "objects") or place in STORAGE_USERS:
            continue
        named = [name for _, name in imports(file) if name.startswith(STORAGE)]
        assert named == [], place


def test_only_the_door_and_the_command_line_read_the_environment() -> None:
    allowed = {SOURCE / "testing" / "stores.py", SOURCE / "resident" / "client.py"}
    allowed |= {file for file in MODULES if part_of_file(file) in ("__init__", "cli")}
    readers = [
        f"{file}:{getattr(node, 'lineno', 0)}"
        for file in MODULES
        if file not in allowed
        for node in ast.walk(parsed(file))
        if _named(node) in ("environ", "environb", "getenv", "putenv")
    ]
    assert readers == []


def _named(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


@pytest.mark.parametrize("part", ["session", "timeline", "journal", "recovery", "upkeep"])
def test_a_decision_returns_what_it_decides(part: str) -> None:
    """A decision may run twice, so nothing is handed out of it but its result."""
    assert [
        f"{file}:{node.lineno}"
        for file in sorted((SOURCE / part).rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Nonlocal)
    ] == []


def test_nothing_is_pickled() -> None:
    banned = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
    used = [(file, name) for file in MODULES for _, name in imports(file)]
    assert [(file, name) for file, name in used if name.split(".")[0] in banned] == []


def test_the_door_draws_every_part_it_opens_on() -> None:
    drawn = mulligan.__doc__ or ""
    small = {"__init__", "layout", "clock"}
    assert [name for name in sorted(parts_behind("__init__") - small) if name not in drawn] == []


def parts_behind(name: str) -> set[str]:
    """Return the parts of the package that a part needs, however indirectly."""
    found, pending = set(), [name]
    while pending:
        here = pending.pop()
        if here in found:
            continue
        found.add(here)
        files = [file for file in MODULES if part_of_file(file) == here]
        names = [name for file in files for _, name in imports(file)]
        pending += [part(name) for name in names if name.startswith("mulligan.")]
    return found
