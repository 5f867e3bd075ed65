"""Be told when something in a folder changes: inotify, where there is one."""

from __future__ import annotations

import os
import sys

_CLOSE_WRITE, _MODIFY, _MOVED_TO = 0x8, 0x2, 0x80


if sys.platform == "linux":

    def watch_folder(folder: str) -> int:
        """Return a descriptor that becomes readable when a file in ``folder`` is written; -1 when the system has no watch left."""
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if fd >= 0 and libc.inotify_add_watch(fd, os.fsencode(folder), _CLOSE_WRITE | _MODIFY | _MOVED_TO) < 0:
            os.close(fd)
            return -1
        return fd

else:

    def watch_folder(_: str) -> int:
        """Return -1: the caller looks again every few milliseconds."""
        return -1


def drain(fd: int) -> None:
    """Forget the events that were told; what changed is read from the folder itself."""
    try:
        while os.read(fd, 65536):
            continue
    except BlockingIOError:
        return
