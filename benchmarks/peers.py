"""Two peers in a virtual environment of their own, run as an ordinary user: they cannot run initdb as root."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks import venvs
from benchmarks.projects import pytest_command
from benchmarks.spawn import Variant

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

WANTED = ("pytest", "psycopg[binary]", "pytest-postgresql==10.0.0", "testing.postgresql==1.3.0")


@dataclass(frozen=True, kw_only=True)
class Peers:
    """Where the peers' interpreter is and whom to run it as."""

    python: str
    account: tuple[int, int] | None


def ensure(cache: Path) -> Peers:
    """Return the peers' environment below ``cache``, made on first use. NoEnvironmentError when this machine cannot have one."""
    from pgshare.account import current_account

    account = current_account()
    run_as = (account.uid, account.gid) if account.drop else None
    python = venvs.make(cache / "benchmark-peers", _interpreter(run_as), WANTED)
    if not _runs(python, run_as):
        raise venvs.NoEnvironmentError(f"the user that peers must run as cannot run {python}")
    return Peers(python=python, account=run_as)


def _interpreter(account: tuple[int, int] | None) -> str:
    """Return an interpreter that the peers' user can read: ours may lie in a private folder of root's."""
    candidates = [getattr(sys, "_base_executable", sys.executable), "/usr/bin/python3", "/usr/local/bin/python3"]
    for found in candidates:
        if os.path.exists(found) and _runs(found, account):
            return found
    raise venvs.NoEnvironmentError(f"no interpreter that uid {account and account[0]} can run; tried {', '.join(candidates)}")


def _runs(python: str, account: tuple[int, int] | None) -> bool:
    uid, gid = account or (None, None)
    groups: list[int] | None = None if account is None else []
    try:
        done = subprocess.run(
            [python, "-c", "import encodings"], cwd="/", env={}, capture_output=True, check=False, user=uid, group=gid,
            extra_groups=groups,
        )  # fmt: skip
    except OSError:
        return False
    return done.returncode == 0


def variants(peers: Peers, top: Path, *, bin_dir: str, parts: Mapping[str, str]) -> list[Variant]:
    """Return the peers' variants, and the control in the peers' own environment. ``parts``: a running server, over TCP."""
    from pgshare import conninfo

    env = {"HOME": str(top / "out"), "BENCH_BIN": bin_dir, "BENCH_DSN": conninfo.build(parts)}

    def variant(name: str, project: str, *options: str) -> Variant:
        return Variant(
            name=name,
            argv=pytest_command(*options, python=peers.python),
            folder=top / project,
            env=env,
            account=peers.account,
        )

    own = "-p", "no:postgresql"
    server = [f"--postgresql-{key}={parts[key]}" for key in ("host", "port", "user", "password")]
    return [
        variant("peers' environment: empty pytest", "empty", *own),
        variant("peers' environment: control", "control", *own),
        variant("pytest-postgresql", "pytest_postgresql", f"--postgresql-exec={bin_dir}/pg_ctl"),
        variant("pytest-postgresql, running server", "pytest_postgresql_noproc", *server),
        variant("testing.postgresql", "testing_postgresql", *own),
    ]
