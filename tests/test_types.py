"""What a user's strict type checker sees: every public name with its type, and a misspelt one as an error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import harness
import pgshare

ROOT = Path(__file__).parents[1]
USER = """
from __future__ import annotations

import harness
import pgshare
import pytest
from harness import assert_never, wait_for
from pgshare import Database, Postgres, Schema


def test_all(pg_dsn: str, pg_schema: Schema, pg_server: Postgres, pg_database: Database) -> None:
    with pg_schema.connect() as conn:
        row = conn.execute("select 1").fetchone()
        assert row is not None
    url: str = pg_schema.url("asyncpg")
    arguments: dict[str, object] = pg_schema.engine_args()
    name: str = pg_schema.channel("jobs") + pg_database.name + pg_server.version + url + str(arguments)
    assert wait_for(lambda: len(name), owner="a name") > 0
    assert_never(lambda: False, owner="nothing", within=0.01)
    with pytest.raises(pgshare.SettingError), pgshare.isolated_schema(pg_dsn, test="x") as made:
        assert made.dsn
    dsn, stop = pgshare.start_suite_postgres("state", "sockets")
    stop()
    with pgshare.suite_postgres() as server:
        assert dsn + server.origin
"""


def check(tmp_path: Path, code: str) -> str:
    (tmp_path / "user.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--cache-dir", str(tmp_path / "cache"), "user.py"],
        cwd=tmp_path,
        env={"MYPYPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_a_strict_checker_knows_every_type_and_every_misspelt_name(tmp_path):
    every = "".join(f"reveal_type({package.__name__}.{name})\n" for package in (pgshare, harness) for name in package.__all__)
    found = check(tmp_path, USER + every + "pgshare.acquire_dns()\n")
    errors = [line for line in found.splitlines() if " error: " in line]
    assert len(errors) == 1, found
    assert 'has no attribute "acquire_dns"' in errors[0]
    revealed = [line for line in found.splitlines() if "Revealed type" in line]
    assert len(revealed) == len(pgshare.__all__) + len(harness.__all__)
    assert [line for line in revealed if '"Any"' in line or '"builtins.object"' in line] == []
