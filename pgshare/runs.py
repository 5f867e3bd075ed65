"""The runs whose folders are on this machine: alive, kept on request, dead, or not to be told; and the recovery of dead ones."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgshare import child, keep, lease, reaper
from pgshare.errors import KeeperError
from pgshare.run import OWNER, Run

if TYPE_CHECKING:
    from collections.abc import Mapping

ALIVE, KEPT_ALIVE, DEAD, UNKNOWN = "alive", "kept", "dead", "unknown"


@dataclass(frozen=True, kw_only=True)
class Found:
    """One run folder. ``age`` is in seconds since its last change."""

    run: Run
    state: str
    age: float
    holds: tuple[str, ...]

    def data(self) -> dict[str, object]:
        """Return plain data for JSON."""
        return {"run": self.run.id, "state": self.state, "age": round(self.age, 1), "holds": list(self.holds)}


def find_runs(top: str) -> list[Found]:
    """Return the runs below the state folder ``top``. Folders without our marker are not looked at."""
    folder = os.path.join(top, "runs")
    found = []
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        path = os.path.join(folder, name)
        if reaper.read_marker(path) == name:
            with contextlib.suppress(FileNotFoundError):  # the run ends while it is looked at
                found.append(_look(path, name))
    return found


def _look(path: str, name: str) -> Found:
    age = max(0.0, time.time() - os.stat(path).st_mtime)
    owner = _read_owner(path)
    if owner is None:
        # Made a moment ago and not yet signed, or signed by nobody: only age can tell.
        run = Run(id=name, folder=path, sockets=path, controller=("", 0, 0))
        return Found(run=run, state=DEAD if age > 600 else UNKNOWN, age=age, holds=())
    controller, sockets = owner
    run = Run(id=name, folder=path, sockets=sockets, controller=controller)
    return Found(run=run, state=_state(run), age=age, holds=_holds(run))


def _read_owner(path: str) -> tuple[tuple[str, int, int], str] | None:
    try:
        with open(os.path.join(path, OWNER), encoding="utf-8") as file:
            boot, pid, start, sockets = file.read().splitlines()
        return (boot, int(pid), int(start)), sockets
    except (OSError, ValueError):
        return None


def _state(run: Run) -> str:
    status = ask(run)
    if status is not None:
        return KEPT_ALIVE if status.get("kept_for") else ALIVE
    alive = child.is_alive(run.controller)
    if alive is None:
        return UNKNOWN
    if alive:
        return ALIVE
    return KEPT_ALIVE if os.path.isdir(os.path.join(run.folder, keep.FOLDER)) else DEAD


def ask(run: Run) -> Mapping[str, object] | None:
    """Return what the run's keeper says of itself; None when no keeper listens."""
    try:
        found = lease.connect(run)
        if found is None:
            return None
        try:
            return found.status()
        finally:
            found.close()
    except (OSError, KeeperError):
        return None


def _holds(run: Run) -> tuple[str, ...]:
    """Return what the run's inventory says it holds."""
    from pgshare.errors import InventoryError
    from pgshare.inventory import Inventory

    inventory = Inventory(run.folder, run_id=run.id)
    try:
        rows = inventory.rows(move=False)
    except InventoryError as exc:
        return (str(exc),)
    return (*(f"{row['kind']} {row['name']}" for row in rows if row["state"] != "released"), *inventory.moved_aside())


def recover_dead(top: str, *, skip: str = "") -> list[str]:
    """Remove what dead runs left; return what had to stay. One process at a time; the others go on at once."""
    import fcntl

    folder = os.path.join(top, "runs")
    if not os.path.isdir(folder) or set(os.listdir(folder)) <= {skip}:
        return []
    fd = os.open(os.path.join(top, "recovery.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return []
        problems = []
        for found in find_runs(top):
            if found.state == DEAD and found.run.id != skip:
                problems += recover(found.run)
        return problems
    finally:
        os.close(fd)


def recover(run: Run) -> list[str]:
    """Remove what one dead run left; return what had to stay, and why."""
    problems = reaper.recover(run.folder)
    if not problems and run.sockets != run.folder and reaper.read_marker(run.sockets) == run.id:
        reaper.remove_tree(run.sockets)
    return problems


def end_kept(run: Run) -> list[str]:
    """End a run that was kept on request: its server, or its schemas on a server of others; return what had to stay."""
    found = lease.connect(run)
    if found is not None:
        return found.end()
    problems = []
    for record in keep.records_of(run.folder):
        problems += _drop_kept(record, run.id)
    return problems or recover(run)


def _drop_kept(record: Mapping[str, object], run_id: str) -> list[str]:
    """Drop one kept schema or database of an external server, when it still carries this run's mark."""
    from pgshare import conninfo, sweep

    parts = conninfo.parse(str(record["dsn"]), name="the kept DSN")
    parts.pop("options", None)
    if parts.get("dbname") == record["name"]:
        parts["dbname"] = "postgres"
    report = sweep.sweep(conninfo.build(parts), name="the kept DSN", apart=0.0, min_age=0.0, only_run=run_id)
    return [f"{item.kind} {item.name}: {why}" for item, why in report.kept]
