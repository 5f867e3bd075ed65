"""Remove what a dead run left behind, and only that: recorded things whose identity still holds, in reverse order.

Used by the keeper's sweeper in the moment of death, by the next run, and by ``harness reap``. No heavy import: the sweeper is a
fork of the keeper.
"""

from __future__ import annotations

import os
import stat
import sys

from pgshare import child
from pgshare.errors import InventoryError
from pgshare.inventory import Inventory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pgshare.child import Identity
    from pgshare.inventory import Row

MARKER = ".pgshare"
LADDER: tuple[tuple[str, float], ...] = (("QUIT", 5.0), ("KILL", 5.0))


def recover(folder: str) -> list[str]:
    """Remove everything that the run in ``folder`` recorded, then the folder; return what could not be removed, and why.

    The caller has made sure that the run is dead. Each step checks identity again right before it acts.
    """
    run_id = read_marker(folder)
    if run_id is None:
        return [f"{folder}: no {MARKER} file of ours in it, left alone"]
    inventory = Inventory(folder, run_id=run_id)
    try:
        rows = inventory.rows()
    except InventoryError as exc:
        return [str(exc)]
    kept = inventory.moved_aside()
    for row in reversed(rows):
        if row["state"] == "released":
            continue
        problem = _remove(row, run_id)
        if problem:
            kept.append(problem)
    if not kept:
        remove_tree(folder)
    return kept


def _remove(row: Row, run_id: str) -> str:
    """Remove one recorded thing; return the reason when it had to stay."""
    kind, name = str(row["kind"]), str(row["name"])
    if kind == "process":
        return _end_process(name, row)
    if kind == "dir":
        return _end_folder(name, run_id)
    return f"{kind} {name}: not removable from here, kept in the inventory"


def _end_process(name: str, row: Row) -> str:
    who = _identity_of(row)
    shm = segments(str(row["root"]), who) if who is not None else []
    if who is not None:
        alive = child.is_alive(who)
        if alive is None:
            return f"process {name} (pid {who[1]}): cannot tell whether it is ours, left alone"
        if alive and not child.stop(who, LADDER):
            return f"process {name} (pid {who[1]}): still running after QUIT and KILL"
    for orphan in processes_in(str(row["root"])):
        if not child.stop(orphan, LADDER):
            return f"process {name}: its child {orphan[1]} is still running"
    for segment in shm:
        remove_segment(*segment)
    return ""


def _identity_of(row: Row) -> Identity | None:
    who = row["identity"]
    if not isinstance(who, dict) or "pid" not in who:
        return None
    return str(who["boot_id"]), int(who["pid"]), int(who["start_time"])


def _end_folder(name: str, run_id: str) -> str:
    if not os.path.lexists(name):
        return ""
    for orphan in processes_in(name):
        if not child.stop(orphan, LADDER):
            return f"folder {name}: process {orphan[1]} is still running in it"
    if read_marker(name) != run_id:
        return f"folder {name}: no {MARKER} file of run {run_id} in it, left alone"
    remove_tree(name)
    return f"folder {name}: could not be removed" if os.path.lexists(name) else ""


def read_marker(folder: str) -> str | None:
    """Return the id of the run that made ``folder``; None when it is not ours."""
    try:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            return None
        fd = os.open(os.path.join(folder, MARKER), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, 100).decode("ascii", "replace").strip()
    finally:
        os.close(fd)


def processes_in(folder: str) -> list[Identity]:
    """Return the processes that run inside ``folder`` (their working directory is there): a dead server's children.

    Only Linux can tell. Never this process or one of its ancestors.
    """
    if sys.platform != "linux" or not os.path.isabs(folder) or len(folder) < len("/a/b"):
        return []
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            where = os.readlink(f"/proc/{entry}/cwd")
        except OSError:
            continue
        if where == folder or where.startswith(folder + "/"):
            who = child.identity(int(entry))
            if who is not None and child.may_signal(who):
                found.append(who)
    return found


def segments(data: str, who: Identity | None) -> list[tuple[int, int]]:
    """Return (segment id, creator pid) of the server's System V segment: line 7 of its postmaster.pid."""
    try:
        with open(os.path.join(data, "postmaster.pid"), encoding="ascii", errors="replace") as file:
            lines = file.read().split("\n")
    except OSError:
        return []
    if who is None or len(lines) < 7 or lines[0].strip() != str(who[1]):
        return []
    parts = lines[6].split()
    return [(int(parts[1]), who[1])] if len(parts) == 2 and parts[1].isdigit() else []


def remove_segment(segment: int, creator: int) -> bool:
    """Remove a System V segment when it still is the one that ``creator`` made and nobody is attached."""
    for row in _shm_table():
        if row[0] == segment and row[1] == creator and row[2] == 0:
            import ctypes

            done: int = ctypes.CDLL(None).shmctl(segment, 0, None)
            return done == 0
    return False


def _shm_table() -> Iterator[tuple[int, int, int]]:
    """Yield (id, creator pid, attached processes) of every System V segment; nothing where the system does not tell."""
    try:
        with open("/proc/sysvipc/shm", encoding="ascii") as file:
            next(file)
            for line in file:
                fields = line.split()
                yield int(fields[1]), int(fields[4]), int(fields[6])
    except (OSError, StopIteration):
        return


def remove_tree(folder: str) -> None:
    """Remove ``folder`` and all in it; what vanishes meanwhile is fine, what cannot go stays to be reported.

    By descriptors, never by path: the folder belongs to the server's unprivileged user, who could swap a folder for a link
    while root removes it.
    """
    try:
        parent = os.open(os.path.dirname(folder), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        _remove_at(os.path.basename(folder), parent)
    finally:
        os.close(parent)


def _remove_at(name: str, parent: int) -> None:
    try:
        here = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except OSError:
        return
    try:
        with os.scandir(here) as entries:
            listed = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for entry_name, is_folder in listed:
            if is_folder:
                _remove_at(entry_name, here)
            elif entry_name != MARKER:
                _quietly(os.unlink, entry_name, here)
        if os.listdir(here) == [MARKER]:
            # Last: what cannot be removed completely must still be known as ours by the next who tries.
            _quietly(os.unlink, MARKER, here)
    finally:
        os.close(here)
    _quietly(os.rmdir, name, parent)


def _quietly(remove: Callable[..., None], name: str, parent: int) -> None:
    try:
        remove(name, dir_fd=parent)
    except OSError:
        return
