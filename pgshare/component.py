"""One process that the keeper holds: start it, know when it is ready, stop it without leaving anything.

Readiness is raced against the process's exit: notify socket, then the ``ready`` line of postmaster.pid (seen by inotify, or
by looking every few ms where there is none). Whatever fires first is named in the report.
"""

from __future__ import annotations

import _socket
import os
import select
import time

from pgshare import child, datadir, reaper, watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pgshare.child import Identity
    from pgshare.inventory import Inventory
    from pgshare.wire import Message

LOOK = 0.005  # seconds between looks at postmaster.pid where no event tells
TAIL = 4000  # bytes of the log that an error carries
DIED = 0.5  # seconds that a dead server's own children get to end by themselves


class Component:
    """A component of the run, from its plain-data spec (described in docs/architecture.md)."""

    def __init__(self, spec: dict[str, object], inventory: Inventory, poller: select.poll) -> None:
        self.spec, self.inventory, self.poller = spec, inventory, poller
        self.name = str(spec["name"])
        self.state = "starting"  # -> verify -> ready, or failed
        self.gate, self.took = "", 0.0
        self.verifier = -1
        self.facts = _mapping(spec.get("facts"))
        self.pid, self.error = 0, ""
        self.identity: Identity | None = None
        self.returncode: int | None = None
        self.rows: list[str] = []
        self._notify: _socket.socket | None = None
        self._inotify = self._pidfd = -1
        self._started_at = time.monotonic()

    # -- start ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Record, make the folders, spawn. A failure becomes the component's state, not an exception in the loop."""
        try:
            self._record()
            self._make_folders()
            self._open_gates()
            self._spawn()
        except OSError as exc:
            self._fail(f"cannot start {self.name}: {exc}")

    def _record(self) -> None:
        data = str(self.spec.get("data") or "")
        rows = [("dir", str(path), str(path)) for path, _ in self._dirs()]
        self.rows = self.inventory.intend([*rows, ("process", self.name, data)])

    def _dirs(self) -> list[tuple[str, int]]:
        dirs = self.spec.get("dirs")
        return [(str(path), int(mode)) for path, mode in dirs] if isinstance(dirs, list) else []

    def _make_folders(self) -> None:
        uid, gid = self._account()
        for path, mode in self._dirs():
            os.mkdir(path, mode)
            os.chmod(path, mode)
            marker = os.open(os.path.join(path, reaper.MARKER), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(marker, str(self.spec["run_id"]).encode("ascii"))
            os.close(marker)
            if uid is not None and gid is not None:
                os.chown(path, uid, gid)
        packed = self.spec.get("unpack")
        if isinstance(packed, list):
            os.mkdir(str(packed[1]), 0o700)
            if uid is not None and gid is not None:
                os.chown(str(packed[1]), uid, gid)

    def _account(self) -> tuple[int | None, int | None]:
        uid, gid = self.spec.get("uid"), self.spec.get("gid")
        return (uid, gid) if isinstance(uid, int) and isinstance(gid, int) else (None, None)

    def _open_gates(self) -> None:
        notify = self.spec.get("notify")
        if notify:
            self._notify = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
            self._notify.setblocking(False)  # noqa: FBT003  # the standard library's signature
            self._notify.bind(str(notify))
            uid, gid = self._account()
            if uid is not None and gid is not None:
                os.chown(str(notify), uid, gid)
            self._watch(self._notify.fileno())
        pidfile = self.spec.get("pidfile")
        if pidfile:
            self._inotify = watch.watch_folder(os.path.dirname(str(pidfile)))
            if self._inotify >= 0:
                self._watch(self._inotify)

    def _watch(self, fd: int) -> None:
        self.poller.register(fd, select.POLLIN)

    def _close_gates(self) -> None:
        """Stop listening for readiness: a live server goes on writing to its folder, and every event would wake the loop."""
        if self._notify is not None:
            self.poller.unregister(self._notify.fileno())
            self._notify.close()
            self._notify = None
        self._inotify = self._unwatch(self._inotify)

    def _unwatch(self, fd: int) -> int:
        if fd >= 0:
            self.poller.unregister(fd)
            os.close(fd)
        return -1

    def _spawn(self) -> None:
        child.become_subreaper()
        log = os.open(str(self.spec["log"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        packed = self.spec.get("unpack")
        source = os.open(str(packed[0]), os.O_RDONLY | os.O_CLOEXEC) if isinstance(packed, list) else -1

        def unpack() -> None:
            if isinstance(packed, list):
                datadir.unpack(source, str(packed[1]))

        argv = [str(part) for part in self.spec["argv"]]  # type: ignore[attr-defined]  # plain data of ours
        env = {str(key): str(value) for key, value in _mapping(self.spec.get("env")).items()}
        death = child.SIGNALS[str(self.spec.get("death_signal", "KILL"))]
        try:
            self.pid = child.spawn(argv, env, log_fd=log, account=self._account(), death_signal=death, before_exec=unpack)
        finally:
            os.close(log)
            if source >= 0:
                os.close(source)
        self.identity = child.identity(self.pid)
        if self.identity is not None:
            boot, pid, start = self.identity
            self.inventory.created({self.rows[-1]: {"boot_id": boot, "pid": pid, "start_time": start}})
            self._pidfd = child.open_pidfd(self.identity)
            if self._pidfd >= 0:
                self._watch(self._pidfd)

    # -- readiness -----------------------------------------------------------------------------------------------------

    def patience(self) -> float | None:
        """Return the seconds until this component must be looked at without an event; None for no limit."""
        if self.state != "starting":
            return None
        every_event_is_told = self._pidfd >= 0 and (self._inotify >= 0 or not self.spec.get("pidfile"))
        return self._left() if every_event_is_told else min(self._left(), LOOK)

    def _left(self) -> float:
        return max(0.0, self._started_at + float(str(self.spec.get("timeout", 60.0))) - time.monotonic())

    def look(self) -> None:
        """Take note of what happened: an exit first, then any gate, then the end of the budget."""
        if self.state in ("failed", "stopped") or not self.pid:
            return
        if self.returncode is None:
            self.returncode = child.reap(self.pid)
        if self.returncode is not None:
            if self.state != "ready":
                self._fail(f"{self.name} ended with status {self.returncode} before it was ready")
            else:
                self._fail(f"{self.name} died with status {self.returncode}")
        elif self.state == "starting":
            gate = self._gate()
            if gate:
                self.state, self.gate, self.took = "verify", gate, time.monotonic() - self._started_at
                self._close_gates()
            elif self._left() <= 0:
                self._fail(f"{self.name} was not ready after {self.spec.get('timeout', 60.0)}s")

    def _gate(self) -> str:
        while self._notify is not None:
            try:
                message = self._notify.recv(4096)
            except BlockingIOError:
                break
            if b"READY=1" in message.split(b"\n"):
                return "notify socket"
        if self._inotify >= 0:
            watch.drain(self._inotify)
        pidfile = self.spec.get("pidfile")
        if pidfile and _says_ready(str(pidfile)):
            return "postmaster.pid"
        return ""

    def _fail(self, error: str) -> None:
        self.error = error
        problems = self._end_processes()
        self.state = "failed"
        self.error = "\n".join([error, *problems])

    # -- reports -------------------------------------------------------------------------------------------------------

    def report(self) -> Message:
        """Return the answer for those who wait."""
        answer: Message = {"state": self.state, "name": self.name, "pid": self.pid, "facts": self.facts}
        answer |= {"gate": self.gate, "took": self.took}
        if self.state == "failed":
            answer |= {"error": self.error, "returncode": self.returncode, "log_tail": self.log_tail()}
        return answer

    def summary(self) -> Message:
        """Return what ``harness ps`` shows."""
        return {"name": self.name, "pid": self.pid, "state": self.state, "dirs": [path for path, _ in self._dirs()]}

    def log_tail(self) -> str:
        """Return the last lines that the process wrote."""
        try:
            with open(str(self.spec["log"]), "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
                return file.read().decode("utf-8", "replace").strip()
        except OSError:
            return ""

    # -- stop ----------------------------------------------------------------------------------------------------------

    def stop(self) -> list[str]:
        """End the process and its descendants, remove its folders; return what could not be removed. Idempotent."""
        if self.state == "stopped":
            return []
        failures = self._end_processes()
        for path, _ in reversed(self._dirs()):
            if not failures and os.path.lexists(path):
                reaper.remove_tree(path)
                if os.path.lexists(path):
                    failures.append(f"folder {path} could not be removed")
        if not failures:
            self.state = "stopped"
            if self.rows:
                self.inventory.released(self.rows)
        return failures

    def _end_processes(self) -> list[str]:
        self._close_gates()
        shm = reaper.segments(str(self.spec.get("data") or ""), self.identity)
        try:
            failures = self._climb()
        finally:
            self._pidfd = self._unwatch(self._pidfd)
        for segment in shm:
            reaper.remove_segment(*segment)
        return failures

    def _climb(self) -> list[str]:
        """Stop by the spec's ladder, then exactly the children that a dead server left to us."""
        ladder = self.spec.get("stop")
        steps = ladder if isinstance(ladder, list) else reaper.LADDER
        if self.identity is not None and self.returncode is None and not child.stop(self.identity, steps):
            return [f"process {self.name} (pid {self.pid}) is still running"]
        if self.returncode is None and self.pid:
            self.returncode = child.reap(self.pid)
        return self._end_orphans()

    def _end_orphans(self) -> list[str]:
        data = str(self.spec.get("data") or "")
        failures = []
        for orphan in reaper.processes_in(data) if data else []:
            if not child.wait_gone(orphan, DIED) and not child.stop(orphan, reaper.LADDER):
                failures.append(f"process {orphan[1]}, a child of {self.name}, is still running")
            child.reap(orphan[1])
        return failures


def _says_ready(pidfile: str) -> bool:
    """Return whether line 8 of postmaster.pid says ``ready``; the file is written in place, so it is read anew each time."""
    try:
        with open(pidfile, encoding="ascii", errors="replace") as file:
            lines = file.read().split("\n")
    except OSError:
        return False
    return len(lines) > 7 and lines[7].strip() == "ready"


def _mapping(value: object) -> dict[str, object]:
    return {str(key): item for key, item in value.items()} if isinstance(value, dict) else {}
