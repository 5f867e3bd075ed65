"""Bounded waits on facts, for tests. The loop and the clock are pgshare's; here are budget, scale and owner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgshare import deadline
from pgshare.deadline import Deadline, NotYet, hang_budget, timeout_scale

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeVar

    T = TypeVar("T")


def wait_for(
    probe: Callable[[], T],
    *,
    owner: str,
    budget: float | None = None,
    describe: Callable[[T], str] = repr,
    env: Mapping[str, str] | None = None,
) -> T:
    """Return the first true result of ``probe``; NotReadyError names ``owner`` and the last result when the budget is spent.

    The first look is immediate. ``budget`` is in seconds and defaults to the hang budget (60, or HARNESS_HANG_BUDGET); either is
    multiplied by HARNESS_TIMEOUT_SCALE. An exception of ``probe`` ends the wait at once; raise ``NotYet`` to be asked again.
    """
    seconds = hang_budget(env) if budget is None else budget * timeout_scale(env)

    def attempt() -> T:
        found = probe()
        if not found:
            raise NotYet(describe(found))
        return found

    return deadline.poll(owner, attempt, Deadline.after(seconds))


def assert_never(probe: Callable[[], bool], *, owner: str, within: float) -> None:
    """Fail as soon as ``probe`` is true within ``within`` seconds. The window is the assertion: it is never scaled."""
    deadline.assert_never(owner, probe, within=within)


__all__ = ["NotYet", "assert_never", "wait_for"]
