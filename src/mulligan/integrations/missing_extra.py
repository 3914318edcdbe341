"""What an adapter says when its framework is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import accumulate


@contextmanager
def framework(extra: str, module: str) -> Iterator[None]:
    """Name the extra of Mulligan to install if imports fail because there is no such module.

    An installed framework whose own imports fail raises what it raises.
    """
    try:
        yield
    except ImportError:
        if _is_installed(module):
            raise
        raise ModuleNotFoundError(
            f"The module {module!r} is not installed: install Mulligan with its extra {extra!r}, "
            f"such as with pip install '.[{extra}]' in the directory of Mulligan.",
            name=module,
        ) from None


def _is_installed(module: str) -> bool:
    # From the outside in: find_spec() imports what a module is in, and raises if that is missing.
    for name in accumulate(module.split("."), "{}.{}".format):
        spec = find_spec(name)
        if spec is None:
            return False
    # Any directory with the name of a module has a spec, but no file that it comes from.
    return spec is not None and spec.origin is not None
