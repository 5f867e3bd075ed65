"""The one clock and the one wait loop: every wait has a bound, names its fact, and reports the last thing it saw."""

from __future__ import annotations

import os
import time

from pgshare.errors import NotReadyError, SettingError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import TypeVar

    T = TypeVar("T")

# A timer that races a process, a thread or a socket start is never shorter: loaded machines take seconds for milliseconds.
RACE_FLOOR = EXEC_RACE_FLOOR = 10.0
HANG_BUDGET = 6 * RACE_FLOOR
FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.025


class NotYet(Exception):  # noqa: N818  # a signal to the wait loop, never seen outside
    """The fact is not there yet; anything else that an attempt raises ends the wait at once."""


class Deadline:
    """A point on the monotonic clock; every step of one operation spends the same budget."""

    def __init__(self, at: float, began: float, clock: Callable[[], float]) -> None:
        self._at, self._began, self._clock = at, began, clock

    @classmethod
    def after(cls, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> Deadline:
        """Return the deadline ``seconds`` from now. SettingError for nan and infinity: every wait ends."""
        if not seconds < float("inf"):
            raise SettingError(f"a wait must be a finite number of seconds, got {seconds!r}")
        now = clock()
        return cls(now + seconds, now, clock)

    @property
    def left(self) -> float:
        """Seconds until the deadline, never negative."""
        return max(0.0, self._at - self._clock())

    @property
    def waited(self) -> float:
        """Seconds since the deadline was set."""
        return self._clock() - self._began

    @property
    def expired(self) -> bool:
        """Whether the budget is spent."""
        return self._clock() >= self._at


def backoff(first: float = FIRST_PAUSE, longest: float = LONGEST_PAUSE) -> Iterator[float]:
    """Yield pauses in seconds: doubled each time, up to ``longest``, without jitter."""
    pause = first
    while True:
        yield pause
        pause = min(longest, pause * 2)


def poll(  # the knobs of the one wait loop, all but three for tests
    what: str,
    attempt: Callable[[], T],
    deadline: Deadline,
    *,
    not_yet: tuple[type[Exception], ...] = (),
    pauses: Iterable[float] | None = None,
    sleep: Callable[[float], None] = time.sleep,  # noqa: TID251  # the one sleep of this package
) -> T:
    """Return the first result of ``attempt``; NotReadyError with the last thing seen when the deadline passes.

    The first try is immediate, the last one at the deadline. Only NotYet and the ``not_yet`` types mean "again"; everything else
    propagates at once. The last of ``pauses`` is used again and again.
    """
    again: tuple[type[Exception], ...] = (NotYet, *not_yet)
    waits = iter(backoff() if pauses is None else pauses)
    attempts, pause = 0, LONGEST_PAUSE
    while True:
        attempts += 1
        try:
            return attempt()
        except again as exc:
            last_seen = " ".join(str(exc).split()) or type(exc).__name__
            if deadline.expired:
                raise NotReadyError(what, waited=deadline.waited, last_seen=last_seen, attempts=attempts) from exc
        pause = next(waits, pause)
        sleep(min(pause, deadline.left))


def assert_never(
    what: str,
    probe: Callable[[], bool],
    *,
    within: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,  # noqa: TID251  # the same one sleep
) -> None:
    """Fail as soon as ``probe`` is true inside the window of ``within`` seconds, which is the assertion and is never scaled."""
    deadline = Deadline.after(within, clock=clock)
    for pause in backoff():
        if probe():
            raise AssertionError(f"{what} happened after {deadline.waited:.3f}s, must not within {within}s")
        if deadline.expired:
            return
        sleep(min(pause, deadline.left))


def hang_budget(env: Mapping[str, str] | None = None) -> float:
    """Return how long anything may take before it counts as hung, in seconds: HARNESS_HANG_BUDGET (default 60, at least
    the floor of 10) times HARNESS_TIMEOUT_SCALE.
    """
    found = os.environ if env is None else env
    text = found.get("HARNESS_HANG_BUDGET", "").strip()
    budget = at_least(text, RACE_FLOOR, name="HARNESS_HANG_BUDGET") if text else HANG_BUDGET
    return budget * timeout_scale(found)


def timeout_scale(env: Mapping[str, str] | None = None) -> float:
    """Return the factor for budgets on slow machines, HARNESS_TIMEOUT_SCALE (default 1, at least 1)."""
    text = (os.environ if env is None else env).get("HARNESS_TIMEOUT_SCALE", "").strip()
    return at_least(text, 1.0, name="HARNESS_TIMEOUT_SCALE") if text else 1.0


def at_least(raw: object, least: float, *, name: str) -> float:
    """Return the setting ``name`` as a finite number of at least ``least``, or raise SettingError."""
    try:
        value = float("nan") if isinstance(raw, bool) else float(raw)  # type: ignore[arg-type]  # TypeError is caught
    except (TypeError, ValueError):
        value = float("nan")
    if not least <= value < float("inf"):
        raise SettingError(f"{name} must be a number of at least {least:g}, got {raw!r}; correct it or unset it")
    return value
