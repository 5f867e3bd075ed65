"""The main job on the embedded default: run the quickstart, say what was started, how fast, and that nothing is left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from hashlib import blake2b
from pathlib import Path

from pgshare.run import state_root

PROJECT = Path(__file__).parents[1] / "examples" / "quickstart"


def left_behind() -> list[str]:
    """Return what is left of the quickstart's runs: their ids start with the hash of its folder."""
    prefix = blake2b(os.fsencode(str(PROJECT)), digest_size=2).hexdigest() + "_"
    runs = Path(state_root(None, os.environ)) / "runs"
    found = [f"folder {path}" for path in runs.glob(f"{prefix}*")]
    found += [f"memory {path}" for path in Path("/dev/shm").glob(f"pgshare_{prefix}*")]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if f"/{prefix}" in line or f"pgshare_{prefix}" in line:
            found.append(f"process {path.parent.name}: {line[:80]}")
    return found


def main() -> int:
    """Run it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PGSHARE_", "PYTEST_"))}
    began = time.monotonic()
    code = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "pgtest", "-n", "2", "-p", "no:asyncio"], cwd=PROJECT, env=env, check=False
    ).returncode
    print(f"\ndemo: {time.monotonic() - began:.1f}s for the whole run of examples/quickstart")
    left = left_behind()
    for thing in left:
        print(f"demo: left behind: {thing}")
    if not left:
        print("demo: nothing is left: no process, no folder, no memory of this run")
    return code or bool(left)


if __name__ == "__main__":
    sys.exit(main())
