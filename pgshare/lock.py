"""An exclusive file lock for the start path: kernel-owned, never unlinked, closed in forked children.

``filelock`` does the same and is used where a lock guards seconds of work (the initdb cache). Importing it costs about
45 ms, more than starting a server from a warm cache, so the one lock that every run takes is this one.
"""

from __future__ import annotations

import errno
import fcntl
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from pgshare.deadline import Deadline

# Held descriptors of this process: a forked child must not keep its parent's lock (an flock belongs to the open file).
_held: set[int] = set()


def _close_in_child() -> None:
    for fd in _held:
        os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)


class FileLock:
    """Hold ``path`` exclusively inside ``with``; the holder's pid is written for people, ownership is the kernel's."""

    def __init__(self, path: str, deadline: Deadline) -> None:
        self._path, self._deadline, self._fd = path, deadline, -1

    def __enter__(self) -> Self:
        """Take the lock, or raise NotReadyError that names the holder."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            self._wait(fd)
        except BaseException:
            os.close(fd)
            raise
        _held.add(fd)
        self._fd = fd
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        return self

    def _wait(self, fd: int) -> None:
        if _try_lock(fd):
            return
        from pgshare.deadline import NotYet, poll

        def attempt() -> None:
            if not _try_lock(fd):
                raise NotYet(f"held by pid {os.pread(fd, 20, 0).decode('ascii', 'replace').strip() or 'unknown'}")

        poll(f"lock {self._path}", attempt, self._deadline)

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        """Release; the file stays, because others may wait on this very inode."""
        fd, self._fd = self._fd, -1
        if fd in _held:
            _held.discard(fd)
            os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        if exc.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True
