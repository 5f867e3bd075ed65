"""The client side of the keeper: start or join it under a lock, ask it for servers, leave.

A lease is an open connection. It ends when this process closes it, exits, or is killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
import weakref
from typing import TYPE_CHECKING

from pgshare import wire
from pgshare.deadline import Deadline
from pgshare.errors import KeeperError
from pgshare.lock import FileLock

if TYPE_CHECKING:
    from collections.abc import Mapping

    import psycopg

    from pgshare.run import Run
    from pgshare.wire import Message

START_BUDGET = 30.0  # seconds for the lock and for the keeper's first answer, on a loaded machine
LEAVE_BUDGET = 10.0  # seconds in which the keeper confirms that all is gone, per stopped component's ladder


class Lease:
    """One process's right to use what the run's keeper holds."""

    def __init__(self, run: Run, conn: socket.socket, *, keeper_pid: int = 0) -> None:
        self.run, self._conn, self._keeper_pid = run, conn, keeper_pid
        self._reader = wire.Reader()
        self.proof: psycopg.Connection | None = None  # the connection that proved the server; closed with the lease
        _open.add(self)

    def send(self, message: Mapping[str, object]) -> None:
        """Send one request."""
        try:
            wire.send(self._conn, dict(message))
        except OSError as exc:
            raise self._gone(exc) from exc

    def receive(self, deadline: Deadline) -> Message:
        """Return the answer to the last request; KeeperError when the keeper is gone or silent."""
        try:
            while True:
                self._conn.settimeout(max(0.001, deadline.left))
                data = self._conn.recv(65536)
                if not data:
                    raise ConnectionResetError("it closed the connection")
                for message in self._reader.feed(data):
                    return message
        except (OSError, ValueError) as exc:
            raise self._gone(exc) from exc

    def _gone(self, exc: Exception) -> KeeperError:
        return KeeperError(
            f"the process that owns this run's servers does not answer ({exc}); its log: {self.run.keeper_log}"
            f"{_tail(self.run.keeper_log)}"
        )

    def start(self, component: Mapping[str, object]) -> None:
        """Ask for ``component``; the answer (``receive``) comes when it is ready for use, to be proved, or failed."""
        self.send({"op": "start", "component": dict(component)})

    def confirm(self, name: str, facts: Mapping[str, object]) -> None:
        """Say that ``name`` was proved to be ours; the others who wait get ``facts``."""
        self.send({"op": "confirm", "name": name, "facts": dict(facts)})

    def status(self) -> Message:
        """Return what the keeper holds and for whom."""
        self.send({"op": "status"})
        return self.receive(Deadline.after(LEAVE_BUDGET))

    def leave(self, *, keep: float = 0.0, budget: float = LEAVE_BUDGET) -> list[str]:
        """End the run (controller only) and return what could not be cleaned; ``keep``: leave it running that long, in seconds."""
        self.send({"op": "leave", "keep": float(keep)})
        return self._await_end(budget)

    def end(self, *, budget: float = LEAVE_BUDGET) -> list[str]:
        """End a run that is not ours any more (kept on request) and return what could not be cleaned."""
        self.send({"op": "end"})
        return self._await_end(budget)

    def _await_end(self, budget: float) -> list[str]:
        try:
            answer = self.receive(Deadline.after(budget))
        finally:
            self.close()
        failures = answer["failures"]
        if answer.get("gone") and self._keeper_pid:
            # It has said goodbye: collect it, so that not even a zombie stays.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._keeper_pid, 0)
        return [str(failure) for failure in failures] if isinstance(failures, list) else []

    def close(self) -> None:
        """Give the lease back without ending the run. Idempotent."""
        proof = self.take_proof()
        if proof is not None:
            proof.close()
        self._conn.close()

    def forget(self) -> None:
        """In a forked child: the connections are the parent's, only our descriptors of the lease go."""
        self.proof = None
        self._conn.close()

    def take_proof(self) -> psycopg.Connection | None:
        """Hand over the connection that proved the server, once."""
        proof, self.proof = self.proof, None
        return proof


# A forked child must not hold the lease of a dead parent: its copies of the descriptors are closed.
_open: weakref.WeakSet[Lease] = weakref.WeakSet()


def _forget_in_child() -> None:
    for lease in list(_open):
        lease.forget()


os.register_at_fork(after_in_child=_forget_in_child)


def _tail(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()[-1000:].strip()
    except OSError:
        return ""
    return f"\n{text}" if text else ""


def connect(run: Run) -> Lease | None:
    """Return a lease on the run's keeper; None when none is listening."""
    conn = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        conn.connect(run.keeper_socket)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        conn.close()
        return None
    except BaseException:
        conn.close()
        raise
    return Lease(run, conn)


def join(run: Run) -> Lease:
    """Join the run's keeper, starting it when this is the first process that needs one."""
    found = connect(run)
    if found is not None:
        return found
    run.make_folders()
    with FileLock(os.path.join(run.folder, "keeper.lock"), Deadline.after(START_BUDGET)):
        return connect(run) or _start(run)


def _start(run: Run) -> Lease:
    """Bind and connect first, then spawn: the keeper inherits a socket that already has our lease in its backlog."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(run.keeper_socket)  # of a keeper that was killed: nobody listens, we hold the lock
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    conn = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(run.keeper_socket)
        os.chmod(run.keeper_socket, 0o600)
        listener.listen(128)
        conn.connect(run.keeper_socket)
        pid = _spawn(run, listener.fileno())
    except BaseException:
        conn.close()
        raise
    finally:
        listener.close()
    return Lease(run, conn, keeper_pid=pid)


def _spawn(run: Run, listener: int) -> int:
    # -I -S -E find neither our package nor site-packages: its parent folder is handed over, behind the standard library.
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    code = "import sys; sys.path.append(sys.argv[1]); from pgshare.keeper import main; main(sys.argv[2:])"
    boot, pid, start = run.controller
    argv = [sys.executable, "-I", "-S", "-E", "-c", code, home, run.folder, run.sockets, run.id, boot, str(pid), str(start)]
    opened = os.open(run.keeper_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    # Out of the way of 0-3, whatever the caller had closed: the actions below write to those.
    log, handed = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (opened, listener))
    try:
        return os.posix_spawn(
            sys.executable,
            argv,
            {"LANG": "C", "PATH": os.environ.get("PATH", os.defpath)},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, handed, 3),
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, log, 1),
                (os.POSIX_SPAWN_DUP2, log, 2),
            ],
        )
    finally:
        for fd in (opened, log, handed):
            os.close(fd)
