"""Modules that others import at their start and hardly use, imported when they are needed.

Together they take a fifth of the time of a short command. The library itself is unaffected: only
``mulligan.cli.entry``, which owns its process, calls this.

Click imports ``inspect`` and uses ``cleandoc`` of it for the help of every option. It also looks
for translations of its own texts, which would be the only ones in another language. msgspec
imports ``typing_extensions``, if it is installed, for three names that ``typing`` has since
Python 3.11, and modules of its own for schemas and other formats; ``backports.zstd`` imports one
for files. ``uuid`` imports ``platform`` for the name of the system, and ``pathlib`` imports
``urllib.parse`` for ``as_uri``. Up to Python 3.11, ``datetime`` defines all of its types in Python
before it replaces them by those in C.
"""

from __future__ import annotations

import os
import sys
import typing
from collections.abc import Callable, Mapping
from importlib import import_module
from threading import RLock
from types import ModuleType
from typing import Any


class Deferred(ModuleType):
    """Stands for a module until more of it is used than ``known``; then it has all of it."""

    def __init__(self, name: str, known: Mapping[str, object]) -> None:
        super().__init__(name)
        # Reentrant: importing the module may ask this stand-in for a name, in the same thread.
        self._lock = RLock()
        vars(self).update(known)

    def __getattr__(self, name: str) -> Any:
        # Called for what is not found here. Special names are looked up by the import system.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(loaded(self), name)


def defer() -> None:
    """Defer the modules that are not imported yet."""
    typing_names = ("get_type_hints", "NotRequired", "Required")
    for name, known in (
        ("inspect", {"cleandoc": cleandoc}),
        ("typing_extensions", {name: getattr(typing, name) for name in typing_names}),
        ("gettext", {"gettext": untranslated, "ngettext": untranslated_plural}),
        ("datetime", _public(import_module("_datetime"))),
        ("platform", {"system": lambda: os.uname().sysname}),
        ("urllib.parse", _on_call("urllib.parse", "quote_from_bytes")),
        ("msgspec.inspect", {}),
        ("msgspec.toml", {}),
        ("msgspec.yaml", {}),
        (schema := "msgspec._json_schema", _on_call(schema, "schema", "schema_components")),
        (zstd := "backports.zstd._zstdfile", _on_call(zstd, "ZstdFile", "open", "_nbytes")),
    ):
        if name not in sys.modules:
            sys.modules[name] = Deferred(name, known)
            if name == "urllib.parse":  # msgspec binds its own modules, urllib does not
                vars(import_module("urllib"))["parse"] = sys.modules[name]


def _public(module: ModuleType) -> dict[str, object]:
    return {name: value for name, value in vars(module).items() if not name.startswith("_")}


def _on_call(module: str, *functions: str) -> dict[str, Callable[..., Any]]:
    """Return functions of a module that import it when they are called."""

    def calling(name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: getattr(_real(module), name)(*args, **kwargs)

    return {name: calling(name) for name in functions}


def untranslated(message: str) -> str:
    """Return a text as it is: every text of this command line is in English."""
    return message


def untranslated_plural(one: str, many: str, count: int) -> str:
    """Return the text for one thing, or for several."""
    return one if count == 1 else many


def cleandoc(doc: str) -> str:
    """Return a docstring without its indentation; one of a single line needs no import."""
    if "\n" not in doc and "\t" not in doc:
        return doc.lstrip()
    return str(_real("inspect").cleandoc(doc))


def _real(name: str) -> ModuleType:
    module = sys.modules.get(name)
    return loaded(module) if isinstance(module, Deferred) else import_module(name)


def loaded(module: Deferred) -> ModuleType:
    """Return the real module, imported in place of the deferred one."""
    # Two threads may come here at once; the second one must not remove what the first imported.
    with module._lock:
        if sys.modules.get(module.__name__) is module:
            del sys.modules[module.__name__]
        return import_module(module.__name__)
