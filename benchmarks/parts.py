"""What is measured: the variants of each part, and what each is compared with."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from benchmarks import peers as peer_parts
from benchmarks.projects import pytest_command
from benchmarks.spawn import Variant

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

SCHEMA_TESTS = 200
WORKERS = (2, 4)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a table: a variant, what it is compared with, and what it may cost."""

    name: str
    against: str | None = None
    # How much more (milliseconds) or how many times as much the measured figure may be; None: only reported.
    extra_ms: float | None = None
    factor: float | None = None


@dataclass(frozen=True, kw_only=True)
class Part:
    """One table: ``figure`` names the field of a sample that is compared."""

    name: str
    title: str
    figure: str
    rows: Sequence[Row]
    variants: Sequence[Variant]
    rounds: int = 1  # times the rounds that were asked for


@dataclass(frozen=True, kw_only=True)
class Server:
    """Where to measure, and a running server: over its socket, and over TCP for users who may not enter its folder."""

    dsn: str
    python: str  # the interpreter to measure in
    tcp: Mapping[str, str]
    bin_dir: str


@contextlib.contextmanager
def cold_cache() -> Iterator[Mapping[str, str]]:
    """Give a state folder that nobody has used: the run makes its data folder with initdb."""
    folder = tempfile.mkdtemp(prefix="pgcold", dir="/var/tmp")
    os.chmod(folder, 0o711)  # as root, the server's own user has to pass
    try:
        yield {"PGSHARE_STATE_DIR": f"{folder}/state"}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def start(top: Path, server: Server, found_peers: peer_parts.Peers | None) -> Part:
    """From the spawn of pytest to the first body with a usable connection in a fresh schema; and from there to the end."""
    control = Variant(
        name="control",
        argv=pytest_command(plugins=False, python=server.python),
        folder=top / "control",
        env={"BENCH_DSN": server.dsn},
    )
    ours = partial(Variant, folder=top / "ours")
    variants = [
        Variant(name="empty pytest", argv=pytest_command(plugins=False, python=server.python), folder=top / "empty"),
        control,
        ours(name="ours, embedded, warm cache", argv=pytest_command(python=server.python)),
        ours(name="ours, external", argv=pytest_command(python=server.python), env={"PGSHARE_DSN": server.dsn}),
        ours(name="ours, embedded, cold cache", argv=pytest_command(python=server.python), around=cold_cache),
    ]
    rows = [
        Row(name="empty pytest", against="control"),
        Row(name="control"),
        Row(name="ours, embedded, warm cache", against="control", extra_ms=20.0),
        Row(name="ours, external", against="control", extra_ms=10.0),
        Row(name="ours, embedded, cold cache", against="control"),
    ]
    for workers in WORKERS:
        env = {"BENCH_COUNT": str(2 * workers)}
        mark, base = f" -n {workers}", f"control -n {workers}"
        variants += [
            Variant(
                name=base,
                argv=pytest_command(workers=workers, plugins=False, python=server.python),
                folder=top / "control",
                env={"BENCH_DSN": server.dsn, **env},
            ),
            ours(name=f"ours, embedded{mark}", argv=pytest_command(workers=workers, python=server.python), env=env),
            ours(
                name=f"ours, external{mark}",
                argv=pytest_command(workers=workers, python=server.python),
                env={"PGSHARE_DSN": server.dsn, **env},
            ),
        ]
        rows += [
            Row(name=base),
            Row(name=f"ours, embedded{mark}", against=base, extra_ms=20.0),
            Row(name=f"ours, external{mark}", against=base, extra_ms=10.0),
        ]
    if found_peers is not None:
        theirs = peer_parts.variants(found_peers, top, bin_dir=server.bin_dir, parts=server.tcp)
        base = theirs[1].name
        variants += theirs
        rows += [Row(name=variant.name, against=None if variant.name == base else base) for variant in theirs]
    return Part(name="start", title="From spawning pytest to the first test body", figure="first", rows=rows, variants=variants)


def end(part: Part) -> Part:
    """Look at the same runs from the last body to the end of the process."""
    rows = [Row(name=row.name, against=row.against) for row in part.rows]
    return Part(
        name="end", title="From the last test body to the end of the process", figure="exit", rows=rows, variants=part.variants
    )


def effort(part: Part) -> Part:
    """Look at the same runs without xdist by the processor time of pytest's own process, up to the first body."""
    rows = [Row(name=row.name, against=row.against) for row in part.rows if " -n " not in row.name]
    title = "Processor time of pytest's process up to the first test body"
    return Part(name="effort", title=title, figure="first_cpu", rows=rows, variants=part.variants)


def unused(top: Path, server: Server) -> Part:
    """Both plugins installed and not used."""
    variants = [
        Variant(name="both plugins off", argv=pytest_command(plugins=False, python=server.python), folder=top / "empty"),
        Variant(name="both plugins on, unused", argv=pytest_command(python=server.python), folder=top / "empty"),
    ]
    return Part(
        name="unused",
        title="An empty pytest run, whole process",
        figure="whole",
        rows=[Row(name="both plugins off"), Row(name="both plugins on, unused", against="both plugins off", factor=1.05)],
        variants=variants,
        rounds=3,
    )


def schema(top: Path, server: Server) -> Part:
    """Compare an empty isolated schema with one connection per test with the floor."""
    count = {"BENCH_COUNT": str(SCHEMA_TESTS)}
    floor = "raw floor: connect, CREATE SCHEMA, DROP SCHEMA"
    variants = [
        Variant(name="pytest alone", argv=pytest_command(plugins=False, python=server.python), folder=top / "empty", env=count),
        Variant(name=floor, argv=[server.python, str(top / "raw.py")], folder=top, env={"BENCH_DSN": server.dsn, **count}),
        Variant(
            name="control",
            argv=pytest_command(plugins=False, python=server.python),
            folder=top / "control",
            env={"BENCH_DSN": server.dsn, **count},
        ),
        Variant(name="ours, embedded", argv=pytest_command(python=server.python), folder=top / "ours", env=count),
        Variant(
            name="ours, external",
            argv=pytest_command(python=server.python),
            folder=top / "ours",
            env={"PGSHARE_DSN": server.dsn, **count},
        ),
    ]
    rows = [
        Row(name="pytest alone"),
        Row(name=floor),
        Row(name="control", against=floor),
        Row(name="ours, embedded", against=floor, factor=2.5),
        Row(name="ours, external", against=floor, factor=2.5),
    ]
    title = f"One test to the next, each with a fresh schema and a connection ({SCHEMA_TESTS} tests)"
    return Part(name="schema", title=title, figure="interval", rows=rows, variants=variants)
