"""One run: its id, its folder, the names it gives, and how the controller hands all that to its workers."""

from __future__ import annotations

import hashlib
import itertools
import os
import stat
from typing import TYPE_CHECKING

from pgshare import child
from pgshare.errors import RefusedError, SettingError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pgshare.child import Identity

PREFIX = "pgshare"
MARKER = ".pgshare"
OWNER = "owner"
# sun_path holds 108 bytes on Linux and 104 elsewhere; the longest name in a socket folder is "/.s.PGSQL.65535.lock".
SOCKET_FOLDER_LIMIT = 86


class Run:
    """One pytest run with all its workers (or one process without pytest)."""

    def __init__(self, *, id: str, folder: str, sockets: str, controller: Identity, worker: str = "main") -> None:  # noqa: A002  # a run's id
        self.id, self.folder, self.sockets = id, folder, sockets
        self.controller, self.worker = controller, worker
        self._count = itertools.count(1)

    def __repr__(self) -> str:
        """Say which run this is."""
        return f"Run({self.id}, {self.worker}, {self.folder})"

    @classmethod
    def new(cls, state_dir: str | None = None, env: Mapping[str, str] | None = None, *, checkout: str = "") -> Run:
        """Return a fresh run of this process. Touches nothing: folders are made by the first who needs them."""
        me = child.identity(os.getpid())
        if me is None:
            raise RefusedError("cannot read the identity of this process; is /proc mounted?")
        place = hashlib.blake2b(os.fsencode(checkout or os.getcwd()), digest_size=2).hexdigest()
        # From the system, never from the random module, which test plugins seed.
        run_id = f"{place}_{os.urandom(4).hex()}"
        top = state_root(state_dir, os.environ if env is None else env)
        folder = os.path.join(top, "runs", run_id)
        return cls(id=run_id, folder=folder, sockets=_short(folder, run_id), controller=me)

    def name(self, kind: str = "") -> str:
        """Return a name nobody else has: ASCII ``[a-z0-9_]``, at most 63 bytes, ``pgshare_<run>_<worker>_<n>``."""
        tail = f"{self.worker}_{next(self._count)}"
        return f"{PREFIX}_{self.id}_{kind + '_' if kind else ''}{tail}"

    def to_workerinput(self) -> dict[str, object]:
        """Return plain data from which a worker process makes the same run."""
        return {"id": self.id, "folder": self.folder, "sockets": self.sockets, "controller": list(self.controller)}

    @classmethod
    def from_workerinput(cls, data: Mapping[str, object], worker: str) -> Run:
        """Return the controller's run as seen by ``worker`` ("gw0")."""
        who = data["controller"]
        if not isinstance(who, (list, tuple)):
            raise TypeError(f"no identity: {who!r}")
        boot, pid, start = who
        return cls(
            id=str(data["id"]),
            folder=str(data["folder"]),
            sockets=str(data["sockets"]),
            controller=(str(boot), int(pid), int(start)),
            worker=worker,
        )

    @property
    def keeper_socket(self) -> str:
        """Where the run's keeper listens."""
        return os.path.join(self.sockets, "k")

    @property
    def keeper_log(self) -> str:
        """Where the run's keeper writes what went wrong."""
        return os.path.join(self.folder, "keeper.log")

    def make_folders(self) -> None:
        """Make the run's folders, private and marked as ours; SettingError where the state folder takes none."""
        try:
            self._make_folders()
        except OSError as exc:
            raise _unusable(self.folder, exc) from exc

    def _make_folders(self) -> None:
        mode = 0o711 if os.geteuid() == 0 else 0o700
        make_top(os.path.dirname(os.path.dirname(self.folder)), mode)
        ensure_private(os.path.dirname(self.folder), mode)
        for folder in dict.fromkeys((self.folder, self.sockets)):
            ensure_private(folder, mode)
            write_marker(folder, self.id)
        self._write_owner()

    def _write_owner(self) -> None:
        """Say whose run this is: who finds the folder later can tell a dead run from a living one."""
        boot, pid, start = self.controller
        path = os.path.join(self.folder, OWNER)
        temporary = f"{path}.{os.urandom(4).hex()}"  # threads of one process may be here at once
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(fd, f"{boot}\n{pid}\n{start}\n{self.sockets}\n".encode())
        finally:
            os.close(fd)
        os.rename(temporary, path)


def write_marker(folder: str, run_id: str) -> None:
    """Mark ``folder`` as made by run ``run_id``: nothing without this file is ever removed."""
    fd = os.open(os.path.join(folder, MARKER), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(fd, run_id.encode("ascii"))
    finally:
        os.close(fd)


def _short(folder: str, run_id: str) -> str:
    """Return ``folder`` where a socket fits into it, else a short private place (limits are bytes; a comma ends a name)."""
    if len(os.fsencode(folder)) + len("/s") <= SOCKET_FOLDER_LIMIT and "," not in folder:
        return folder
    return f"/var/tmp/{PREFIX}-{os.geteuid()}/s/{run_id}"  # noqa: S108  # private: made 0700 and owner-checked


def state_root(state_dir: str | None, env: Mapping[str, str]) -> str:
    """Return the folder for runs and caches: the setting, else per user; for root a place its server's user can reach."""
    if state_dir:
        if not has_plain_name(state_dir):
            raise SettingError(f"PGSHARE_STATE_DIR={state_dir!r} holds a control character or is not UTF-8; name another folder")
        return os.path.abspath(state_dir)
    uid = os.geteuid()
    fallback = f"/var/tmp/{PREFIX}-{uid}"  # noqa: S108  # private: made 0711/0700, owner- and symlink-checked
    if uid == 0:
        return fallback
    home = env.get("XDG_STATE_HOME") or (os.path.join(env["HOME"], ".local", "state") if env.get("HOME") else "")
    if not os.path.isabs(home) or not has_plain_name(home) or not _is_usable(home, uid):
        return fallback
    return os.path.join(home, PREFIX)


def has_plain_name(path: str) -> bool:
    """Return whether servers and drivers can take this path: UTF-8 without control characters."""
    return not any(ord(char) < 32 or 0xD800 <= ord(char) <= 0xDFFF for char in path)


def _is_usable(folder: str, uid: int) -> bool:
    """Return whether ``folder``, or the nearest existing parent, is ours to write to."""
    while not os.path.isdir(folder):
        parent = os.path.dirname(folder)
        if parent == folder:
            return False
        folder = parent
    return os.stat(folder).st_uid == uid and os.access(folder, os.W_OK | os.X_OK)


def cache_folder(state_dir: str | None, env: Mapping[str, str]) -> str:
    """Return the folder for what may be kept between runs (prepared data folders, known binaries)."""
    top = state_root(state_dir, env)
    make_top(top, 0o711 if os.geteuid() == 0 else 0o700)
    folder = os.path.join(top, "cache")
    try:
        ensure_private(folder, 0o711 if os.geteuid() == 0 else 0o700)
    except OSError as exc:
        raise _unusable(folder, exc) from exc
    return folder


def _unusable(folder: str, exc: OSError) -> SettingError:
    return SettingError(f"cannot use {folder!r} for runs and caches: {exc.strerror}; set PGSHARE_STATE_DIR to a folder of yours")


def make_top(folder: str, mode: int) -> None:
    """Make the state folder and its parents."""
    try:
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        ensure_private(folder, mode)
    except OSError as exc:
        raise _unusable(folder, exc) from exc


def ensure_private(folder: str, mode: int) -> None:
    """Make ``folder`` if absent and refuse one that is a symlink, another user's, or open to others' writes."""
    try:
        os.mkdir(folder, mode)
    except FileNotFoundError:
        ensure_private(os.path.dirname(folder), mode)
        os.mkdir(folder, mode)
    except FileExistsError:
        pass
    else:
        os.chmod(folder, mode)  # the umask may have taken bits away
        return
    seen = os.lstat(folder)
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.geteuid() or seen.st_mode & 0o022:
        raise RefusedError(
            f"{folder!r} is a link, not ours, or writable by others; remove it or set PGSHARE_STATE_DIR to another folder"
        )
