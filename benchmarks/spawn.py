"""Run one process and learn, on one clock, when it was spawned, when each test body ran, and when it was gone."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

KEPT = ("PATH", "LANG", "TZ", "HOME")
LIMIT = 120.0  # seconds; a process that takes longer is not slow but stuck


@contextlib.contextmanager
def nothing() -> Iterator[Mapping[str, str]]:
    """No preparation, no further variables."""
    yield {}


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One thing to measure: a command in a folder, with what it needs around it."""

    name: str
    argv: Sequence[str]
    folder: Path
    env: Mapping[str, str] = field(default_factory=dict)
    # Entered before each run and left after it, outside of the measured time; gives further variables.
    around: Callable[[], AbstractContextManager[Mapping[str, str]]] = nothing
    # (uid, gid) to run as; None is ours.
    account: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What one run took, in milliseconds."""

    first: float  # from the spawn to the first body
    first_cpu: float  # processor time that the first body's process had used by then: hardly moved by other load
    exit: float  # from the last body to the end of the process
    whole: float
    cpu: float  # user and system time of the process and of the children that it waited for
    interval: float | None  # median between consecutive bodies; None with fewer than three


class FailedRunError(RuntimeError):
    """A measured process failed: its figures mean nothing."""


def run(variant: Variant, stamps: Path) -> Sample:
    """Run ``variant`` once. FailedRunError with its output when it does not exit with 0 or never reached a body."""
    stamps.unlink(missing_ok=True)
    with variant.around() as more:
        env = {name: os.environ[name] for name in KEPT if name in os.environ}
        env |= {"BENCH_OUT": str(stamps), **variant.env, **more}
        uid, gid = variant.account or (None, None)
        groups: list[int] | None = None if variant.account is None else []
        with open(stamps.with_suffix(".log"), "w+b") as log:
            began = time.clock_gettime(time.CLOCK_MONOTONIC)
            process = subprocess.Popen(
                list(variant.argv), cwd=variant.folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                user=uid, group=gid, extra_groups=groups,
            )  # fmt: skip
            cpu = _wait(process)
            ended = time.clock_gettime(time.CLOCK_MONOTONIC)
            log.seek(0)
            output = log.read().decode("utf-8", "replace")
    times = read_stamps(stamps)
    if process.returncode != 0 or not times:
        raise FailedRunError(f"{variant.name!r} exited with {process.returncode} after {len(times)} test bodies:\n{output}")
    return _sample(times, began=began, ended=ended, cpu=cpu)


def _wait(process: subprocess.Popen[bytes]) -> float:
    """Wait for the end of ``process`` and return the processor time that it used (seconds)."""
    import resource

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    # wait() with a timeout looks every 50 ms, which would be most of what is measured here.
    watchdog = threading.Timer(LIMIT, process.kill)
    watchdog.start()
    process.wait()
    watchdog.cancel()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def read_stamps(stamps: Path) -> list[tuple[float, float]]:
    """Return (time, processor time) of each body, earliest first."""
    lines = stamps.read_text().splitlines() if stamps.exists() else []
    return sorted((float(when), float(cpu)) for when, cpu in (line.split() for line in lines))


def _sample(times: list[tuple[float, float]], *, began: float, ended: float, cpu: float) -> Sample:
    import statistics

    ordered = [when for when, _ in times]
    gaps = [later - earlier for earlier, later in itertools.pairwise(ordered)]
    return Sample(
        first=(ordered[0] - began) * 1000,
        first_cpu=times[0][1] * 1000,
        exit=(ended - ordered[-1]) * 1000,
        whole=(ended - began) * 1000,
        cpu=cpu * 1000,
        interval=statistics.median(gaps) * 1000 if len(gaps) > 1 else None,
    )


def interleave(variants: Sequence[Variant], rounds: int, stamps: Path, tell: Callable[[str], None]) -> dict[str, list[Sample]]:
    """Run every variant once per round, in turning order, after one round that does not count; samples by name, in round order.

    Neighbours share the machine's mood, and the turning order keeps one from always following the same other.
    """
    samples: dict[str, list[Sample]] = {variant.name: [] for variant in variants}
    for number in range(rounds + 1):
        shift = number % len(variants)
        for variant in [*variants[shift:], *variants[:shift]]:
            sample = run(variant, stamps)
            if number:
                samples[variant.name].append(sample)
        tell(f"  round {number} of {rounds}" if number else "  warm-up round")
    return samples
