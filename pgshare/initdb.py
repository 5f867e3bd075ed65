"""The prepared data folder: looked up in the cache, made by initdb once, as the server's user, under a lock."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from pgshare import datadir
from pgshare.cluster import DATABASE, USER, child_env, scram_verifier
from pgshare.errors import ServerStartError
from pgshare.place import free_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgshare.account import Account
    from pgshare.binaries import Binaries
    from pgshare.deadline import Deadline

INITDB = ("--no-sync", "--encoding=UTF8", "--auth=scram-sha-256", f"--username={USER}", "--wal-segsize=1")
NEEDED = 64 << 20  # bytes that initdb and the pack take together, rounded up
LOCALES = ("C.UTF-8", "C")  # a libc without C.UTF-8 (musl, old ones) has C; the encoding is UTF8 either way
NO_NAME = "could not look up effective user ID"
NO_NAMESPACE = "cannot make a user namespace"


class Template(NamedTuple):
    """A data folder fresh from initdb, packed in the cache. ``took`` is in seconds, 0 when it was there already."""

    pack: str
    password: str
    took: float


def ensure_template(binaries: Binaries, account: Account, cache: str, *, fresh: bool, deadline: Deadline) -> Template:
    """Return the prepared data folder for these binaries, making it once per cache.

    Raises ServerStartError with initdb's own words. A maker that dies half-way leaves nothing that is ever used.
    """
    settings = hashlib.blake2b(repr((INITDB, datadir.MAGIC, "one iteration")).encode(), digest_size=4).hexdigest()
    pack = os.path.join(cache, f"data-{binaries.version}-{binaries.key}-{settings}.pack")
    if not fresh:
        ready = _read(pack)
        if ready is not None:
            return ready
    return _build(binaries, account, pack, fresh=fresh, deadline=deadline)


def _read(pack: str) -> Template | None:
    """Return the template in the cache when it is whole. The password file is renamed into place before the pack."""
    if not datadir.is_whole(pack):
        return None
    try:
        with open(f"{pack}.password", encoding="ascii") as file:
            return Template(pack=pack, password=file.read(), took=0.0)
    except OSError:
        return None


def _build(binaries: Binaries, account: Account, pack: str, *, fresh: bool, deadline: Deadline) -> Template:
    """Run initdb, pack its folder, and publish the pack by rename.

    Raises ServerStartError with initdb's last lines, and with path and free bytes where space was the matter.
    """
    from filelock import FileLock, Timeout

    began = time.perf_counter()
    lock = FileLock(f"{pack}.lock", timeout=max(1.0, deadline.left))
    try:
        with lock:
            ready = None if fresh else _read(pack)
            if ready is not None:
                return ready
            password = _make(binaries, account, pack, deadline)
    except Timeout as exc:
        raise ServerStartError(
            f"another run has been preparing {pack} for {deadline.waited:.0f}s; remove {lock.lock_file} if it hangs"
        ) from exc
    return Template(pack=pack, password=password, took=time.perf_counter() - began)


def _make(binaries: Binaries, account: Account, pack: str, deadline: Deadline) -> str:
    cache = os.path.dirname(pack)
    _forget_debris(cache)
    with _workshop(cache, account) as folder:
        password = secrets.token_hex(16)
        password_file = os.path.join(folder, "password")
        _write(password_file, password, account)
        data = os.path.join(folder, "data")
        _initdb(binaries, account, data, password_file, deadline)
        _cheapen_password(binaries, account, data, password, deadline)
        made = os.path.join(cache, f"{os.path.basename(folder)}.pack")
        try:
            datadir.pack(data, made)
            # The pack is the commit mark, so the password goes first: a reader that sees the pack sees its password.
            _write(f"{made}.password", password, None)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(pack)
            os.rename(f"{made}.password", f"{pack}.password")
            os.rename(made, pack)
        except OSError as exc:
            raise ServerStartError(f"cannot keep the prepared data folder: {exc}{_space(cache)}") from exc
        finally:
            for leftover in (made, f"{made}.password"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(leftover)
    return password


@contextlib.contextmanager
def _workshop(cache: str, account: Account) -> Iterator[str]:
    """Make a folder of the server's user inside the cache, gone afterwards."""
    import shutil
    import tempfile

    folder = tempfile.mkdtemp(prefix="making-", dir=cache)
    try:
        if account.drop:
            os.chown(folder, account.uid, account.gid)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _forget_debris(cache: str) -> None:
    """Remove what a maker that was killed left; we hold the lock, so nobody is making now."""
    import shutil

    for entry in os.listdir(cache):
        if entry.startswith("making-"):
            path = os.path.join(cache, entry)
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.unlink(path)


def _write(path: str, text: str, account: Account | None) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        if account is not None and account.drop:
            os.fchown(fd, account.uid, account.gid)
        os.write(fd, text.encode("ascii"))
    finally:
        os.close(fd)


def _initdb(binaries: Binaries, account: Account, data: str, password_file: str, deadline: Deadline) -> None:
    code, said = 1, ""
    for locale in LOCALES:
        argv = [binaries.path("initdb"), "-D", data, f"--locale={locale}", f"--pwfile={password_file}", *INITDB]
        code, said = _run(argv, binaries, account, deadline)
        if code == 0:
            return
        if "locale" not in said:
            break
    if NO_NAME in said:
        raise ServerStartError(
            f"uid {account.uid} has no name on this machine and initdb wants one; set PGSHARE_DSN to a server, run as a user "
            "with a passwd entry, or allow user namespaces",
            returncode=code,
            log_tail=said,
        )
    raise ServerStartError(f"initdb ended with status {code}{_space(data)}", returncode=code, log_tail=said)


def _cheapen_password(binaries: Binaries, account: Account, data: str, password: str, deadline: Deadline) -> None:
    """Store the random password with one SCRAM iteration: the first connection of every run pays for each of them."""
    argv = [binaries.path("postgres"), "--single", "-D", data, "-c", "fsync=off", DATABASE]
    code, said = _run(argv, binaries, account, deadline, f"alter role {USER} password '{scram_verifier(password)}'\n")
    if code:
        raise ServerStartError(f"postgres --single ended with status {code}{_space(data)}", returncode=code, log_tail=said)


def _run(argv: list[str], binaries: Binaries, account: Account, deadline: Deadline, said: str = "") -> tuple[int, str]:
    """Run a server program as the server's user, with ``said`` on its standard input; return its status and its last words."""
    code, answer = _run_once(argv, binaries, account, deadline, said)
    if code and NO_NAME in answer and not account.drop:
        named, told = _run_once([*_with_a_name(), *argv], binaries, account, deadline, said)
        if NO_NAMESPACE not in told:
            return named, told
    return code, answer


def _run_once(argv: list[str], binaries: Binaries, account: Account, deadline: Deadline, said: str = "") -> tuple[int, str]:
    """Run a server program once."""
    import subprocess

    uid, gid = account.for_child
    try:
        done = subprocess.run(
            argv,
            env=child_env(binaries),
            cwd="/",
            input=said.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=max(10.0, deadline.left),
            check=False,
            user=uid,
            group=gid,
            extra_groups=[] if account.drop else None,
            umask=0o077,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as exc:
        raise ServerStartError(
            f"{os.path.basename(argv[0])} was still running after {exc.timeout:.0f}s", log_tail=_text(exc.stdout)
        ) from exc
    except OSError as exc:
        raise ServerStartError(f"cannot run {argv[0]}: {exc}") from exc
    return done.returncode, _text(done.stdout)


def _text(output: bytes | None) -> str:
    return (output or b"").decode("utf-8", "replace").strip()[-4000:]


def _space(path: str) -> str:
    free = free_bytes(path)
    return "" if free >= NEEDED else f"; {free >> 20} MiB ({free} bytes) are free at {path}, {NEEDED >> 20} MiB are needed"


def _with_a_name() -> list[str]:
    """Return a command prefix that gives this uid the name of an existing account, inside a user namespace of its own.

    initdb only wants a name to print and to record; files stay ours outside of the namespace.
    """
    import pwd

    stand_in = next((entry for entry in pwd.getpwall() if entry.pw_uid != 0), None)
    if stand_in is None:
        return []
    code = f"""
import ctypes, os, sys
uid, gid = os.geteuid(), os.getegid()
try:
    if ctypes.CDLL(None, use_errno=True).unshare(0x10000000):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    for name, text in ("setgroups", "deny"), ("uid_map", f"{{sys.argv[1]}} {{uid}} 1"), ("gid_map", f"{{sys.argv[2]}} {{gid}} 1"):
        with open("/proc/self/" + name, "w") as file:
            file.write(text)
except OSError as exc:
    sys.exit(f"{NO_NAMESPACE}: {{exc}}")
os.execv(sys.argv[3], sys.argv[3:])
"""
    return [sys.executable, "-I", "-S", "-E", "-c", code, str(stand_in.pw_uid), str(stand_in.pw_gid)]
