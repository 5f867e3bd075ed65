"""Processes known by pid, start time and boot: who is alive, how to start one, how to stop exactly that one.

Imported by the keeper, which runs without site-packages and wants to be up in milliseconds: no heavy module here.
"""

from __future__ import annotations

import errno
import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal  # the front module only adds enums, for 5 ms
    from collections.abc import Callable, Mapping, Sequence

    # (boot id and pid namespace, pid, start time in clock ticks since boot)
    Identity = tuple[str, int, int]
else:
    import _signal

HUP, INT, QUIT, KILL, TERM = 1, 2, 3, 9, 15
SIGNALS = {"INT": INT, "QUIT": QUIT, "KILL": KILL, "TERM": TERM}
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36

if sys.platform == "linux":

    def boot_id() -> str:
        """Return what tells this boot and this pid namespace from every other."""
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        try:
            return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
        except OSError:
            return f"{boot}/pid:[unknown]"

    def read_stat(pid: int) -> tuple[str, int, int] | None:
        """Return (state, parent pid, start time) of ``pid``; None when there is no such process."""
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                text = file.read()
        except (FileNotFoundError, ProcessLookupError):
            return None
        # The second field (the command) may hold blanks and ')': count from the last one.
        fields = text.rpartition(")")[2].split()
        return fields[0], int(fields[1]), int(fields[19])

    def children_of(pid: int) -> list[int]:
        """Return the pids whose parent is ``pid`` right now."""
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                stat = read_stat(int(entry))
                if stat is not None and stat[1] == pid:
                    found.append(int(entry))
        return found

else:

    def boot_id() -> str:
        """Return a constant: this platform cannot tell, so nothing is proven dead by it."""
        return "unknown"

    def read_stat(pid: int) -> tuple[str, int, int] | None:
        """Return a state without a start time where the process answers; None when there is none."""
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
        return "?", 0, 0

    def children_of(_: int) -> list[int]:
        """Return nothing: without /proc only recorded pids are known."""
        return []


def identity(pid: int) -> Identity | None:
    """Return who ``pid`` is now; None when it is gone or a zombie."""
    stat = read_stat(pid)
    if stat is None or stat[0] in "ZX":
        return None
    return boot_id(), pid, stat[2]


def is_alive(who: Identity) -> bool | None:
    """Return True when exactly this process lives, False when it is proven dead, None when nobody can tell."""
    boot, pid, start = who
    here = boot_id()
    if boot.partition("/")[0] != here.partition("/")[0]:
        # Another boot of this machine is over, but the id may also come from another machine's disk.
        return None if "unknown" in (boot, here) else False
    if boot != here:
        return None  # another pid namespace: its pids mean nothing here
    stat = read_stat(pid)
    if stat is None or stat[0] in "ZX":
        return False
    if start == 0 or stat[2] == 0:
        return None
    return stat[2] == start


def open_pidfd(who: Identity) -> int:
    """Return a descriptor that becomes readable when exactly this process ends; -1 when it is gone or unsupported."""
    opener = getattr(os, "pidfd_open", None)
    if opener is None:
        return -1
    try:
        fd: int = opener(who[1])
    except OSError:
        return -1
    # The pid may have been handed to somebody else before we opened it.
    if is_alive(who) is False:
        os.close(fd)
        return -1
    return fd


def may_signal(who: Identity) -> bool:
    """Return whether signalling is allowed at all: never init, ourselves or one of our ancestors."""
    pid = who[1]
    if pid <= 1:
        return False
    seen = os.getpid()
    while seen > 1:
        if seen == pid:
            return False
        stat = read_stat(seen)
        if stat is None:
            break
        seen = stat[1]
    return True


def send_signal(who: Identity, number: int) -> bool:
    """Signal exactly this process; False when it is already gone or must not be touched."""
    if is_alive(who) is not True or not may_signal(who):
        return False
    fd = open_pidfd(who)
    try:
        if fd >= 0:
            _signal.pidfd_send_signal(fd, number)
        elif is_alive(who) is True:
            os.kill(who[1], number)
        else:
            return False
    except ProcessLookupError:
        return False
    finally:
        if fd >= 0:
            os.close(fd)
    return True


def wait_gone(who: Identity, seconds: float) -> bool:
    """Wait until this process is gone (a zombie is gone); True when it is."""
    give_up = time.monotonic() + seconds
    fd = open_pidfd(who)
    try:
        while is_alive(who) is not False:
            left = give_up - time.monotonic()
            if left <= 0:
                return False
            # Without a pidfd there is no event for a process that is not our child: look again soon.
            select.select([fd] if fd >= 0 else [], [], [], left if fd >= 0 else min(left, 0.01))
    finally:
        if fd >= 0:
            os.close(fd)
    return True


def stop(who: Identity, ladder: Sequence[Sequence[object]]) -> bool:
    """Climb ``ladder`` ([signal name, seconds], ...) until the process is gone; True when it is."""
    for name, seconds in ladder:
        send_signal(who, SIGNALS[str(name)])
        if wait_gone(who, float(str(seconds))):
            return True
    return is_alive(who) is False


def reap(pid: int) -> int | None:
    """Collect our own ended child; its exit status as ``subprocess`` counts it, None while it runs or when unknown."""
    try:
        done, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if done else None


def become_subreaper() -> bool:
    """Make orphaned descendants our children (Linux), so that none of them is ever out of sight."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> bool:
    if sys.platform != "linux":
        return False
    import ctypes

    done: int = ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
    return done == 0


def reset_signals() -> None:
    """Undo what a caller's shell left: ``cmd &`` and nohup leave INT and QUIT ignored, and exec would inherit that."""
    for number in (INT, QUIT, TERM, _signal.SIGHUP, _signal.SIGPIPE, _signal.SIGCHLD):
        _signal.signal(number, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())


def ignore(number: int) -> None:
    """Ignore a signal in this process."""
    _signal.signal(number, _signal.SIG_IGN)


def drop_privileges(uid: int | None, gid: int | None) -> None:
    """Become the unprivileged account for good, with no supplementary groups."""
    if uid is None or gid is None:
        return
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


def spawn(
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    log_fd: int,
    account: tuple[int | None, int | None] = (None, None),
    death_signal: int = 0,
    before_exec: Callable[[], None] | None = None,
) -> int:
    """Fork and exec ``argv``; the child's errors before exec go to its log and end it with 127.

    Only for a single-threaded caller (the keeper): the child runs Python between fork and exec.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        _become(argv, env, log_fd, account, death_signal, before_exec, parent)
    except BaseException as exc:  # noqa: BLE001  # nothing may return into the keeper's loop
        os.write(2, f"pgshare: cannot start {argv[0]}: {exc!r}\n".encode())
    finally:
        os._exit(127)


def _become(  # noqa: PLR0913, PLR0917  # the parts of one exec, used once
    argv: Sequence[str],
    env: Mapping[str, str],
    log_fd: int,
    account: tuple[int | None, int | None],
    death_signal: int,
    before_exec: Callable[[], None] | None,
    parent: int,
) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    reset_signals()
    os.umask(0o077)
    drop_privileges(*account)
    if death_signal:
        # After the drop: the kernel forgets the setting when the uid changes.
        _prctl(_PR_SET_PDEATHSIG, death_signal)
        if os.getppid() != parent:
            os._exit(126)
    if before_exec is not None:
        before_exec()
    os.chdir("/")
    os.execve(argv[0], list(argv), dict(env))  # noqa: S606  # an exact argv of ours


def is_missing(exc: OSError) -> bool:
    """Return whether ``exc`` says that the thing is simply not there."""
    return exc.errno in (errno.ENOENT, errno.ENOTDIR)
