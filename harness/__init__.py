"""Stacks, policy and timing tools for pytest suites; in this version bounded waits and the command ``harness``."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from harness.errors import HarnessError as HarnessError
    from harness.probes import assert_never as assert_never
    from harness.probes import wait_for as wait_for

_HOME = {"HarnessError": "errors", "assert_never": "probes", "wait_for": "probes"}
__all__ = sorted(_HOME)  # noqa: PLE0605  # checked against the block above by tests/test_architecture.py

if not TYPE_CHECKING:
    # Hidden from type checkers: a visible module __getattr__ would turn every misspelt name into a silent object.
    def __getattr__(name: str) -> object:
        try:
            module = _HOME[name]
        except KeyError:
            raise AttributeError(f"module 'harness' has no attribute {name!r}") from None
        from importlib import import_module

        return getattr(import_module(f"harness.{module}"), name)

    def __dir__() -> list[str]:
        return [*globals(), *_HOME]
