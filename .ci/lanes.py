"""Run every lane that exists and end with pytest's own closing lines; the exit status is the worst of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pgshare import suite_postgres
from pgshare.binaries import list_binaries
from pgshare.run import cache_folder
from pgshare.settings import Settings

ROOT = Path(__file__).parents[1]
# The live tests that make sense on a server that somebody else runs.
SERVICE = [
    "tests/pgshare/test_schema.py",
    "tests/pgshare/test_limits.py",
    "tests/pgshare/test_conninfo.py",
    "tests/pgshare/test_acquire.py",
]
SERVICE += ["tests/pgshare/test_aconn.py", "tests/harness/test_cli.py", "examples/quickstart"]


def lane(name: str, *args: str, **env: str) -> int:
    """Run one lane and return its exit status."""
    print(f"\n=== lane {name}", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", *args]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **env}, check=False).returncode


def main() -> int:
    """Run the lanes: default (embedded server), then service (PGSHARE_DSN, required), on another version where there is one."""
    workers = ("-n", "2")
    codes = [lane("default: embedded server", *workers, "tests", "examples/quickstart")]
    newest = list_binaries(os.environ, cache_folder(None, os.environ))[0]
    with suite_postgres(settings=Settings(bin=newest.bin_dir)) as server:
        found = lane(
            f"service: Postgres {server.version} named by PGSHARE_DSN",
            *workers,
            "-m",
            "pgtest",
            "--pg-require",
            *SERVICE,
            PGSHARE_DSN=server.dsn,
        )
        codes.append(found)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
