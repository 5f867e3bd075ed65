"""Run every lane that exists and end with pytest's own closing lines; the exit status is the worst of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from pgshare import suite_postgres
from pgshare.binaries import Binaries, find_binaries, list_binaries
from pgshare.run import cache_folder
from pgshare.settings import Settings

ROOT = Path(__file__).parents[1]
QUICKSTART = ROOT / "examples" / "quickstart"


def lane(name: str, *args: str, folder: Path = ROOT, **extra: str) -> int:
    """Run one lane and return its exit status. Settings of the caller's own runs do not reach it."""
    print(f"\n=== lane {name}", flush=True)
    foreign = ("PGSHARE_", "HARNESS_", "PYTEST_")
    env = {key: value for key, value in os.environ.items() if not key.startswith(foreign)} | extra
    began = time.monotonic()
    code = subprocess.run([sys.executable, "-m", "pytest", "-q", "-n", "2", *args], cwd=folder, env=env, check=False).returncode
    print(f"=== lane {name}: {'green' if code == 0 else f'exit status {code}'} after {time.monotonic() - began:.0f}s", flush=True)
    return code


def choose_other() -> Binaries:
    """Return the newest server whose major version the embedded lane does not use; the same where there is only one."""
    cache = cache_folder(None, os.environ)
    default = find_binaries(None, os.environ, cache)
    return next((found for found in list_binaries(os.environ, cache) if found.major != default.major), default)


def main() -> int:
    """Run the lanes: the embedded default, then the live tests on a server that PGSHARE_DSN names, as a CI service is named."""
    codes = [
        lane("default: embedded server", "tests"),
        lane("quickstart: embedded server", "-p", "no:asyncio", folder=QUICKSTART),
    ]
    with suite_postgres(settings=Settings(bin=choose_other().bin_dir)) as server:
        where = f"Postgres {server.version} named by PGSHARE_DSN"
        live = ("-m", "pgtest", "--pg-require")
        codes.append(lane(f"service: {where}", *live, "tests", PGSHARE_DSN=server.dsn))
        codes.append(lane(f"quickstart: {where}", *live, "-p", "no:asyncio", folder=QUICKSTART, PGSHARE_DSN=server.dsn))
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
