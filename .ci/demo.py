"""The main job on the embedded default: run the quickstart, say what was started, how fast, and prove that nothing is left.

While the run's server is up, this file, as a plugin of that run, writes down the run's exact id, its folders and its processes,
and what the proof sees of them. After the run the same look must find nothing: a look that saw nothing before would prove nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

HERE = Path(__file__).parent
PROJECT = HERE.parent / "examples" / "quickstart"
RECORD = "DEMO_RECORD"
KINDS = {
    "process": ("process", "processes"),
    "socket": ("socket", "sockets"),
    "shared": ("shared memory segment", "shared memory segments"),
    "folder": ("folder", "folders"),
}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write down what the run has, while it has it."""
    if RECORD not in os.environ or hasattr(session.config, "workerinput"):
        return
    from pgshare.door import LIVE
    from pgshare.inventory import Inventory

    run = session.config.stash[LIVE].run
    if not os.path.isdir(run.folder):
        return
    rows = Inventory(run.folder, run_id=run.id).rows(move=False)
    folders = [*dict.fromkeys([run.folder, run.sockets]), *(row["name"] for row in rows if row["kind"] == "dir")]
    pids = [row["identity"]["pid"] for row in rows if row["kind"] == "process"]
    record = {"run": run.id, "folders": folders, "pids": pids, "had": traces(run.id, folders, pids)}
    Path(os.environ[RECORD]).write_text(json.dumps(record), encoding="utf-8")


def traces(run_id: str, folders: list[str], pids: list[int]) -> list[str]:
    """Return what exists of exactly this run: its processes, sockets, folders, and shared memory made by ``pids``."""
    found = [f"folder {folder}" for folder in folders if os.path.lexists(folder)]
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        if pid != os.getpid() and (run_id in command(pid) or run_id in _where(pid)):
            found.append(f"process {pid}: {command(pid)}")
    found += [f"socket {line.split()[-1]}" for line in _lines("/proc/net/unix") if run_id in line]
    segments = [line.split() for line in _lines("/proc/sysvipc/shm")[1:]]
    return found + [f"shared memory segment {fields[1]} of process {fields[4]}" for fields in segments if int(fields[4]) in pids]


def command(pid: int) -> str:
    """Return a process's command line; blank when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _where(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def count(found: list[str]) -> str:
    """Return how many there are of each kind."""
    words = [line.split()[0] for line in found]
    numbers = {kind: words.count(kind) for kind in KINDS}
    return ", ".join(f"{number} {KINDS[kind][number != 1]}" for kind, number in numbers.items() if number)


def judge(record: Path) -> int:
    """Say what the run had and what of it is left; 0 when that is nothing."""
    seen = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {"had": []}
    if not seen["had"]:
        print("demo: no run was watched, so nothing is proved")
        return 1
    print(f"demo: run {seen['run']} had while it ran: {count(seen['had'])}")
    left = traces(seen["run"], seen["folders"], seen["pids"])
    for thing in left:
        print(f"demo: left behind: {thing}")
    if not left:
        print(f"demo: run {seen['run']} has left nothing: no process, no socket, no shared memory, no folder")
    return 1 if left else 0


def main() -> int:
    """Run it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PGSHARE_", "PYTEST_"))}
    path = os.pathsep.join(filter(None, [str(HERE), env.get("PYTHONPATH", "")]))
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.json"
        env |= {RECORD: str(record), "PYTHONPATH": path}
        arguments = ["-m", "pgtest", "-n", "2", "-p", "demo", "-p", "no:asyncio"]
        began = time.monotonic()
        code = subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=PROJECT, env=env, check=False).returncode
        print(f"\ndemo: {time.monotonic() - began:.1f} s for the whole run of examples/quickstart")
        return judge(record) or code


if __name__ == "__main__":
    sys.exit(main())
