"""Fixtures that every part of the suite shares: real servers, throw-away projects, what a run left behind."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from typing import TYPE_CHECKING

import pytest
from projects import Project, link_cache

from pgshare import runs
from pgshare.binaries import list_binaries
from pgshare.run import cache_folder
from pgshare.settings import Settings
from pgshare.suite import Postgres, suite_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest_plugins = ["pytester"]

# A shell's ``make test &`` leaves these ignored in everything it starts, and with them every test about signals.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

MAJORS = sorted({found.major for found in list_binaries(os.environ, cache_folder(None, os.environ))})


@pytest.fixture(scope="session")
def live_dsn(pg_server: Postgres) -> str:
    """An administrative DSN of the suite's server, whichever origin it has."""
    return pg_server.dsn


@pytest.fixture(scope="session")
def own_server() -> Iterator[Postgres]:
    """A server of this process alone, with prepared transactions and few connections, for tests that hurt a server."""
    with suite_postgres(settings=Settings(), server_settings={"max_prepared_transactions": "5", "max_connections": "30"}) as found:
        yield found


@pytest.fixture(scope="session", params=MAJORS, ids=[f"pg{major}" for major in MAJORS])
def each_server(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    """Every installed major version, one after the other."""
    found = next(item for item in list_binaries(os.environ, cache_folder(None, os.environ)) if item.major == request.param)
    with suite_postgres(settings=Settings(bin=found.bin_dir)) as server:
        yield server


@pytest.fixture
def state_dir() -> Iterator[str]:
    """A short, private state folder with a warm cache, gone after the test."""
    folder = tempfile.mkdtemp(prefix="pgst", dir="/var/tmp")
    os.chmod(folder, 0o711 if os.geteuid() == 0 else 0o700)
    link_cache(cache_folder(None, os.environ), os.path.join(folder, "cache"))
    yield folder
    for found in runs.find_runs(folder):
        if found.state == runs.KEPT_ALIVE:  # of a test that failed before it could end what it kept
            runs.end_kept(found.run)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def project(tmp_path: Path, state_dir: str) -> Project:
    """An empty project folder to run pytest in, as a user would."""
    folder = tmp_path / "project"
    folder.mkdir()
    return Project(folder, state_dir)
