"""The little projects that are measured: each test body writes when it had what it needs, and the CPU time of its process."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

STAMP = """\
import os
import time

import pytest

COUNT = int(os.environ.get("BENCH_COUNT", "1"))


def stamp():
    with open(os.environ["BENCH_OUT"], "a") as file:
        file.write(f"{time.clock_gettime(time.CLOCK_MONOTONIC)} {time.process_time()}\\n")


"""
EMPTY = """\
@pytest.mark.parametrize("n", range(COUNT))
def test_empty(n):
    stamp()
"""
# What everybody writes who has a server already, and nothing more.
CONTROL = """\
@pytest.fixture
def conn(n):
    import psycopg

    with psycopg.connect(os.environ["BENCH_DSN"], autocommit=True) as conn:
        name = f"control_{os.getpid()}_{n}"
        conn.execute(f"create schema {name}")
        conn.execute(f"set search_path = {name}")
        yield conn
        conn.execute(f"drop schema {name} cascade")


@pytest.mark.parametrize("n", range(COUNT))
def test_control(conn, n):
    conn.execute("select 1")
    stamp()
"""
OURS = """\
@pytest.mark.parametrize("n", range(COUNT))
def test_ours(pg_conn, n):
    pg_conn.execute("select 1")
    stamp()
"""
PYTEST_POSTGRESQL = """\
def test_pytest_postgresql(postgresql):
    postgresql.execute("select 1")
    stamp()
"""
PYTEST_POSTGRESQL_NOPROC = """\
from pytest_postgresql import factories

server = factories.postgresql_noproc()
connection = factories.postgresql("server")


def test_noproc(connection):
    connection.execute("select 1")
    stamp()
"""
TESTING_POSTGRESQL = """\
@pytest.fixture(scope="session")
def server():
    from testing.postgresql import Postgresql

    programs = {name: os.path.join(os.environ["BENCH_BIN"], name) for name in ("initdb", "postgres")}
    with Postgresql(**programs) as server:
        yield server


@pytest.fixture
def conn(server):
    import psycopg

    with psycopg.connect(server.url(), autocommit=True) as conn:
        conn.execute("create schema s")
        conn.execute("set search_path = s")
        yield conn
        conn.execute("drop schema s cascade")


def test_testing_postgresql(conn):
    conn.execute("select 1")
    stamp()
"""
# The floor without pytest: what a connection and an empty schema cost at all.
RAW = (
    STAMP.replace("import pytest\n\n", "")
    + """\
import psycopg

for number in range(COUNT + 1):
    with psycopg.connect(os.environ["BENCH_DSN"], autocommit=True) as conn:
        conn.execute(f"create schema raw_{os.getpid()}_{number}")
        conn.execute(f"drop schema raw_{os.getpid()}_{number}")
    stamp()
"""
)
TESTS = {
    "empty": EMPTY,
    "control": CONTROL,
    "ours": OURS,
    "pytest_postgresql": PYTEST_POSTGRESQL,
    "pytest_postgresql_noproc": PYTEST_POSTGRESQL_NOPROC,
    "testing_postgresql": TESTING_POSTGRESQL,
}


def write(top: Path) -> None:
    """Write every project below ``top``, readable for all."""
    for name, text in TESTS.items():
        folder = top / name
        folder.mkdir()
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / f"test_{name}.py").write_text(STAMP + text)
    (top / "raw.py").write_text(RAW)
    for path in [top, *top.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


def foreign_plugins(keep: Sequence[str] = ()) -> list[str]:
    """Return ``-p no:NAME`` for every installed pytest plugin that is not ours: they tax all variants alike and blur the rest."""
    from importlib.metadata import entry_points

    known = {point.name for point in entry_points(group="pytest11")} | {"xdist", "xdist.looponfail"}
    names = known - {"pgshare", "harness", *keep}
    return [word for name in sorted(names) for word in ("-p", f"no:{name}")]


def pytest_command(*args: str, workers: int = 0, plugins: bool = True, python: str = sys.executable) -> list[str]:
    """Return the command for one run; without ``plugins`` neither of ours is loaded. Names that are not installed do no harm."""
    blocked = foreign_plugins(("xdist", "xdist.looponfail") if workers else ())
    if not plugins:
        blocked += ["-p", "no:pgshare", "-p", "no:harness"]
    split = ["-n", str(workers)] if workers else []
    return [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *blocked, *split, *args]
