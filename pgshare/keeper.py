"""The suite's one owner process: parent of servers, holder of leases; it ends what it holds with the last lease.

Started as ``python -I -S -E -c ...`` with an already listening socket, in its own session. Single-threaded, standard library
only, and of that only what is up in milliseconds. Two things end a run: the controller asks to leave, or the controller dies
(its pidfd is the root lease). Before anything else the keeper forks a sweeper, which acts only when the keeper goes without a
goodbye.
"""

from __future__ import annotations

import _socket
import os
import select
import struct
import sys
import time

from pgshare import child, reaper, wire
from pgshare.component import Component
from pgshare.inventory import Inventory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pgshare.child import Identity
    from pgshare.wire import Message

LISTENER = 3  # the descriptor on which the starter hands over the listening socket
CONTROLLER_LOOK = 1.0  # seconds between looks at the controller where the system has no pidfd


class _Lease:
    """One open connection: a process that uses what the keeper holds."""

    def __init__(self, conn: _socket.socket, pid: int) -> None:
        self.conn, self.pid = conn, pid
        self.reader = wire.Reader()
        self.awaits = ""  # the component whose state this peer waits for


class Keeper:
    """The event loop and the state of one run."""

    def __init__(self, folder: str, sockets: str, run_id: str, controller: Identity) -> None:
        self.folder, self.sockets, self.run_id, self.controller = folder, sockets, run_id, controller
        me = child.identity(os.getpid()) or ("", os.getpid(), 0)
        owner = {"pid": me[1], "start_time": me[2], "boot_id": me[0], "host": os.uname().nodename, "uid": os.geteuid()}
        self.inventory = Inventory(folder, run_id=run_id, owner=owner)
        self.listener = _socket.socket(fileno=LISTENER)
        self.listener.setblocking(False)  # noqa: FBT003  # the standard library's signature
        self.leases: dict[int, _Lease] = {}
        self.components: dict[str, Component] = {}
        self.ends_at = 0.0  # kept on request until then; 0 means that the controller decides
        self.pidfd = child.open_pidfd(controller)
        self.poller = select.poll()
        self.poller.register(self.listener.fileno(), select.POLLIN)
        if self.pidfd >= 0:
            self.poller.register(self.pidfd, select.POLLIN)

    def serve(self) -> None:
        """Answer until the run ends; then end everything."""
        while not self._is_over():
            for fd, _ in self.poller.poll(self._patience()):
                if fd == self.listener.fileno():
                    self._accept()
                elif fd in self.leases:
                    self._hear(self.leases[fd])
            for component in list(self.components.values()):
                component.look()
                self._tell(component)
        self.end()

    def _patience(self) -> float | None:
        """Return how long to wait for an event, in ms."""
        waits = [component.patience() for component in self.components.values()]
        if self.ends_at:
            waits.append(max(0.0, self.ends_at - time.monotonic()))
        elif self.pidfd < 0:
            waits.append(CONTROLLER_LOOK)
        known = [wait for wait in waits if wait is not None]
        return min(known) * 1000 + 1 if known else None

    def _is_over(self) -> bool:
        if self.ends_at:
            return time.monotonic() >= self.ends_at
        return child.is_alive(self.controller) is False

    def _accept(self) -> None:
        try:
            fd, _ = self.listener._accept()  # type: ignore[attr-defined]  # noqa: SLF001  # what the front module calls
        except BlockingIOError:
            return
        conn = _socket.socket(fileno=fd)
        pid, uid = _peer(conn)
        if uid != os.geteuid():
            conn.close()
            return
        conn.settimeout(5.0)
        self.leases[fd] = _Lease(conn, pid)
        self.poller.register(fd, select.POLLIN)

    def _hear(self, lease: _Lease) -> None:
        try:
            data = lease.conn.recv(65536)
            if not data:
                self._drop(lease)
                return
            for message in lease.reader.feed(data):
                self._answer(lease, message)
        except (OSError, ValueError, KeyError, TypeError):
            self._drop(lease)  # nonsense ends that connection, never the run

    def _drop(self, lease: _Lease) -> None:
        """Forget a lease whose process closed it or died; what it alone owned ends."""
        fd = lease.conn.fileno()
        self.leases.pop(fd, None)
        self.poller.unregister(fd)
        lease.conn.close()
        for component in self.components.values():
            if component.verifier == fd:
                component.verifier = -1  # the next who waits takes over the proof

    def _answer(self, lease: _Lease, message: Message) -> None:
        verb = message.get("op")
        if verb == "start":
            self._start(lease, message)
        elif verb == "confirm":
            self._confirm(str(message["name"]), message.get("facts"))
        elif verb == "status":
            wire.send(lease.conn, self._status())
        elif verb == "leave":
            self._leave(lease, float(str(message.get("keep", 0.0))))
        elif verb == "end":
            self.end(lease)
        else:
            wire.send(lease.conn, {"state": "failed", "error": f"unknown request {verb!r}"})

    def _start(self, lease: _Lease, message: Message) -> None:
        """Start the named component unless it is there; the answer comes when it is ready or has failed."""
        spec = message["component"]
        if not isinstance(spec, dict):
            raise ValueError("no component")  # noqa: TRY004  # like every other malformed message
        name = str(spec["name"])
        if name in self.components and self.components[name].state == "failed":
            self.components.pop(name).stop()  # a lost race for a port: the next try gets another
        if name not in self.components:
            component = Component(spec, self.inventory, self.poller)
            self.components[name] = component
            component.start()
        lease.awaits = name
        self._tell(self.components[name])

    def _tell(self, component: Component) -> None:
        """Answer those who wait for ``component`` as far as its state allows: one of them proves its identity."""
        for fd, lease in list(self.leases.items()):
            if lease.awaits != component.name or component.state == "starting":
                continue
            if component.state == "verify":
                if component.verifier >= 0:
                    continue
                component.verifier = fd
            lease.awaits = ""
            try:
                wire.send(lease.conn, component.report())
            except OSError:
                self._drop(lease)

    def _confirm(self, name: str, facts: object) -> None:
        component = self.components[name]
        if component.state == "verify":
            component.state = "ready"
            if isinstance(facts, dict):
                component.facts.update(facts)

    def _status(self) -> Message:
        return {
            "run_id": self.run_id,
            "pid": os.getpid(),
            "controller": list(self.controller),
            "leases": [lease.pid for lease in self.leases.values()],
            "components": [component.summary() for component in self.components.values()],
            "kept_for": max(0.0, self.ends_at - time.monotonic()) if self.ends_at else 0.0,
        }

    def _leave(self, lease: _Lease, keep: float) -> None:
        if lease.pid != self.controller[1]:
            self._drop(lease)
        elif keep > 0:
            self.ends_at = time.monotonic() + keep
            if self.pidfd >= 0:
                self.poller.unregister(self.pidfd)
            wire.send(lease.conn, {"gone": False, "failures": []})
        else:
            self.end(lease)

    def end(self, asker: _Lease | None = None) -> None:
        """Stop everything in reverse, remove the run's folders, say so, and exit. Reports what stayed."""
        failures = []
        for component in reversed(list(self.components.values())):
            failures += component.stop()
        if not failures:
            if self.sockets != self.folder:
                reaper.remove_tree(self.sockets)
            reaper.remove_tree(self.folder)
        os.write(GOODBYE, b"G")
        if asker is not None:
            try:  # noqa: SIM105  # contextlib is not loaded here
                wire.send(asker.conn, {"gone": not failures, "failures": failures})
            except OSError:
                pass  # it did not wait for the answer
        os._exit(1 if failures else 0)


if sys.platform == "linux":

    def _peer(conn: _socket.socket) -> tuple[int, int]:
        """Return (pid, uid) of the process at the other end."""
        pid, uid, _ = struct.unpack("3i", conn.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12))
        return pid, uid

else:

    def _peer(conn: _socket.socket) -> tuple[int, int]:
        """Return (pid, uid) of the process at the other end: SOL_LOCAL, LOCAL_PEERPID and LOCAL_PEERCRED."""
        (pid,) = struct.unpack("i", conn.getsockopt(0, 2, 4))
        _, uid = struct.unpack("2I", conn.getsockopt(0, 1, 76)[:8])
        return pid, uid


GOODBYE = -1


def _fork_sweeper(folder: str, sockets: str) -> int:
    """Fork the process that cleans when the keeper is killed; return the pipe end on which to say goodbye."""
    keeper = child.identity(os.getpid())
    read_end, write_end = os.pipe()
    if os.fork():
        os.close(read_end)
        return write_end
    os.close(write_end)
    os.close(LISTENER)
    os.setsid()
    _sweep(read_end, keeper, folder, sockets)
    os._exit(0)


def _sweep(read_end: int, keeper: Identity | None, folder: str, sockets: str) -> None:
    pidfd = child.open_pidfd(keeper) if keeper is not None else -1
    # A child that the keeper was forking holds the pipe's other end for a moment: the pidfd does not wait for it.
    select.select([fd for fd in (read_end, pidfd) if fd >= 0], [], [])
    os.set_blocking(read_end, False)
    try:
        said = os.read(read_end, 1)
    except BlockingIOError:
        said = b""
    if not said:
        run_id = reaper.read_marker(folder)
        problems = reaper.recover(folder)
        if not problems and sockets != folder and run_id is not None and reaper.read_marker(sockets) == run_id:
            reaper.remove_tree(sockets)  # the short folder for sockets, where the run's own path was too long for one
        for problem in problems:
            os.write(2, f"sweeper: {problem}\n".encode())


def main(argv: list[str]) -> None:
    """Run the keeper: folder, sockets, run id, controller's boot id, pid and start time."""
    global GOODBYE  # noqa: PLW0603  # one process, one pipe
    folder, sockets, run_id, boot, pid, start = argv
    os.setsid()
    child.reset_signals()
    ignore_terminal()
    GOODBYE = _fork_sweeper(folder, sockets)
    os.chdir("/")
    keeper = Keeper(folder, sockets, run_id, (boot, int(pid), int(start)))
    try:
        keeper.serve()
    except BaseException as exc:  # noqa: BLE001  # whatever it is, nothing may stay behind
        sys.excepthook(type(exc), exc, exc.__traceback__)
        sys.stderr.flush()
        keeper.end()


def ignore_terminal() -> None:
    """Ignore what a terminal or a job control sends to everybody: the controller decides when the run ends."""
    for number in (child.INT, child.QUIT, child.HUP):
        child.ignore(number)
