"""Where a server's data lies: in memory when there is room, else on disk; and how much room there is."""

from __future__ import annotations

import os
from typing import NamedTuple

ROOM = 1 << 30  # bytes that count as room for a test suite's data
MEMORY = ("/dev/shm",)  # noqa: S108  # a folder of ours is made in it, 0700


class Place(NamedTuple):
    """A folder that does not exist yet, and why it is there."""

    folder: str
    kind: str  # "memory" or "disk"
    free: int  # bytes

    def __str__(self) -> str:
        """Say it for a report."""
        return f"{self.kind} ({os.path.dirname(self.folder)}, {self.free / (1 << 30):.1f} GiB free)"


def choose_kind(memory: str, room: int, needed: int = ROOM) -> str:
    """Return "memory" or "disk" for the setting ``memory`` (auto, always, never) and the bytes of memory to be had."""
    if memory == "auto":
        return "memory" if room >= needed else "disk"
    return "memory" if memory == "always" else "disk"


def choose_place(memory: str, disk: str, name: str) -> Place:
    """Return where the data of ``name`` goes; ``disk`` is the run's folder there."""
    for shm in MEMORY:
        if memory != "never" and os.access(shm, os.W_OK | os.X_OK) and is_memory(shm):
            free = room_in_memory(shm)
            if choose_kind(memory, free) == "memory":
                return Place(folder=os.path.join(shm, name), kind="memory", free=free)
    return Place(folder=os.path.join(disk, "d"), kind="disk", free=free_bytes(disk))


def is_memory(folder: str) -> bool:
    """Return whether ``folder`` is a mounted tmpfs."""
    try:
        with open("/proc/mounts", encoding="utf-8", errors="replace") as file:
            return any(line.split()[1:3] in ([folder, "tmpfs"], [folder, "ramfs"]) for line in file)
    except OSError:
        return False


def room_in_memory(folder: str, cgroup: str = "/sys/fs/cgroup", membership: str = "/proc/self/cgroup") -> int:
    """Return the bytes that may still be written to a tmpfs: the least of its free space, free memory and every cgroup limit."""
    rooms = [free_bytes(folder), _available()]
    rooms += [room for room in cgroup_rooms(cgroup, membership) if room is not None]
    return max(0, min(rooms))


def free_bytes(folder: str) -> int:
    """Return the free bytes of the file system that holds ``folder`` or its nearest existing parent."""
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    seen = os.statvfs(folder)
    return seen.f_bavail * seen.f_frsize


def _available() -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 1 << 62


def cgroup_rooms(root: str, membership: str) -> list[int | None]:
    """Return limit minus use of each memory cgroup that holds us and of its parents, for cgroup v2 and v1."""
    try:
        with open(membership, encoding="ascii", errors="replace") as file:
            lines = [line.strip().split(":", 2) for line in file]
    except OSError:
        return []
    rooms: list[int | None] = []
    for number, controllers, path in (line for line in lines if len(line) == 3):
        if number == "0" and not controllers:
            rooms += _climb(root, path, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            rooms += _climb(os.path.join(root, "memory"), path, "memory.limit_in_bytes", "memory.usage_in_bytes")
    return rooms


def _climb(top: str, path: str, limit: str, use: str) -> list[int | None]:
    rooms = []
    # Inside a container the path may be the host's: the mounted root is then the group itself.
    folder = os.path.normpath(top + path)
    while folder.startswith(top):
        rooms.append(_room(os.path.join(folder, limit), os.path.join(folder, use)))
        folder = os.path.dirname(folder)
    return rooms


def _room(limit_file: str, use_file: str) -> int | None:
    try:
        with open(limit_file, encoding="ascii") as limit, open(use_file, encoding="ascii") as use:
            text = limit.read().strip()
            return None if text == "max" else max(0, int(text) - int(use.read()))
    except (OSError, ValueError):
        return None
