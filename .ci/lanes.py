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
SERVICE = ["schema", "limits", "conninfo", "acquire", "aconn", "teardown", "database"]


def lane(name: str, *args: str, folder: Path = ROOT, **env: str) -> int:
    """Run one lane and return its exit status."""
    print(f"\n=== lane {name}", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", *args]
    return subprocess.run(command, cwd=folder, env={**os.environ, **env}, check=False).returncode


def main() -> int:
    """Run the lanes: default (embedded server), then service (PGSHARE_DSN, required), on the newest version that is here."""
    quickstart = ROOT / "examples" / "quickstart"
    codes = [lane("default: embedded server", "tests")]
    codes.append(lane("quickstart: embedded server", "-p", "no:asyncio", folder=quickstart))
    newest = list_binaries(os.environ, cache_folder(None, os.environ))[0]
    with suite_postgres(settings=Settings(bin=newest.bin_dir)) as server:
        where = f"Postgres {server.version} named by PGSHARE_DSN"
        files = [f"tests/pgshare/test_{name}.py" for name in SERVICE]
        codes.append(
            lane(f"service: {where}", "-m", "pgtest", "--pg-require", *files, "tests/harness/test_cli.py", PGSHARE_DSN=server.dsn)
        )
        codes.append(lane(f"quickstart: {where}", "-p", "no:asyncio", "--pg-require", folder=quickstart, PGSHARE_DSN=server.dsn))
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
