"""Importing this module makes Python import the other modules of ours without pytest's assertion rewriter.

pytest rewrites every module of a distribution that has a plugin. Ours hold nothing to rewrite (asserts are for tests), yet each
would be read by the rewriter (15 ms a run), and compiled anew in every run where bytecode is not written, as in most container
images (75 ms and more).
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

OURS = ("pgshare.", "harness.")


class PlainFinder:
    """Finds our modules as Python itself would, and leaves every other name to the rest."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the plain spec of a module of ours; None for anybody else's."""
        return PathFinder.find_spec(name, path, target) if name.startswith(OURS) else None


_users = 0


def install() -> None:
    """Put the finder in front, once, for as long as somebody uses it (a pytest inside a test is another user)."""
    global _users  # noqa: PLW0603  # sys.meta_path is one for the process, and so is this
    _users += 1
    if PlainFinder not in sys.meta_path:
        sys.meta_path.insert(0, PlainFinder)


def uninstall() -> None:
    """Take it out again with its last user: left there it costs 5 ms at the interpreter's end."""
    global _users  # noqa: PLW0603
    _users -= 1
    if _users <= 0 and PlainFinder in sys.meta_path:
        sys.meta_path.remove(PlainFinder)


if PlainFinder not in sys.meta_path:
    sys.meta_path.insert(0, PlainFinder)
