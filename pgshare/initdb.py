"""The prepared data folder: looked up in the cache, made by initdb once, as the server's user, under a lock."""

from __future__ import annotations

import contextlib
import glob
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
# A libc without C.UTF-8 (musl, old ones): the server's own since 17, else C; the encoding is UTF8 either way.
LOCALES = (
    (0, ("--locale=C.UTF-8",)),
    (17, ("--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")),
    (0, ("--locale=C",)),
)
NO_LOCALE = "invalid locale"
NO_NAME = "could not look up effective user ID"
NO_NAMESPACE = "cannot make a user namespace"
NAME_LIBRARIES = ("/usr/lib/*/libnss_wrapper.so", "/usr/lib*/libnss_wrapper.so", "/usr/local/lib*/libnss_wrapper.so")
KEPT_FOR = 30 * 24 * 3600.0  # seconds that something unused stays in the cache


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
    """Return the template in the cache when it is whole. The password file is there before the pack."""
    if not datadir.is_whole(pack):
        return None
    password = _read_password(pack)
    return Template(pack=pack, password=password, took=0.0) if password else None


def _read_password(pack: str) -> str:
    """Return the password of the data in ``pack``, empty where there is none (a machine that lost power left an empty file)."""
    try:
        with open(f"{pack}.password", encoding="ascii", errors="replace") as file:
            text = file.read()
    except OSError:
        return ""
    return text if len(text) == 32 and all(char in "0123456789abcdef" for char in text) else ""


def _build(binaries: Binaries, account: Account, pack: str, *, fresh: bool, deadline: Deadline) -> Template:
    """Run initdb, pack its folder, and publish the pack by rename.

    Raises ServerStartError with initdb's last lines, and with path and free bytes where space was the matter.
    """
    from filelock import FileLock, Timeout

    began, asked = time.perf_counter(), time.time_ns()
    cache = os.path.dirname(pack)
    # One lock for the whole cache: what lies half-made there is then nobody's, whatever version it was for.
    lock = FileLock(os.path.join(cache, "initdb.lock"), timeout=max(1.0, deadline.left))
    try:
        with lock:
            ready = _read(pack)
            # Fresh for all who ask at once (the workers of a run): whoever was first has made it.
            if ready is not None and not (fresh and os.stat(pack).st_mtime_ns <= asked):
                return ready
            password = _make(_Maker(binaries, account, deadline), pack)
    except Timeout as exc:
        raise ServerStartError(
            f"another run has been preparing {pack} for {deadline.waited:.0f}s; remove {lock.lock_file} if it hangs"
        ) from exc
    except OSError as exc:
        raise ServerStartError(f"cannot prepare a data folder in {cache}: {exc}{_space(cache)}") from exc
    return Template(pack=pack, password=password, took=time.perf_counter() - began)


def _make(maker: _Maker, pack: str) -> str:
    cache = os.path.dirname(pack)
    _forget_debris(cache)
    _forget_old(cache)
    with _workshop(cache, maker.account) as folder:
        # Kept when there is one: a run that has just read it may be about to start a server from the old pack or the new.
        kept = _read_password(pack)
        password = kept or secrets.token_hex(16)
        _initdb(maker, folder, password)
        _cheapen_password(maker, folder, password)
        made = f"{folder}.pack"
        try:
            datadir.pack(os.path.join(folder, "data"), made)
            if not kept:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(pack)
                # The pack is the commit mark, so the password goes first: a reader that sees the pack sees its password.
                _write(f"{made}.password", password, None)
                os.rename(f"{made}.password", f"{pack}.password")
            os.rename(made, pack)
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


def _forget_old(cache: str) -> None:
    """Remove data and copied programs that no run has used for long: each version of a server leaves 24 MB or more."""
    import shutil

    before = time.time() - KEPT_FOR
    keys = set()
    for pack in glob.glob(os.path.join(glob.escape(cache), "data-*.pack")):
        seen = os.stat(pack)
        if max(seen.st_atime, seen.st_mtime) > before:
            keys.add(os.path.basename(pack).split("-")[2])
            continue
        for path in (pack, f"{pack}.password", f"{pack}.lock"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
    for copy in glob.glob(os.path.join(glob.escape(cache), "binaries-*")):
        if copy.rpartition("-")[2] not in keys and os.stat(copy).st_mtime <= before:
            shutil.rmtree(copy, ignore_errors=True)


def _write(path: str, text: str, account: Account | None) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        if account is not None and account.drop:
            os.fchown(fd, account.uid, account.gid)
        os.write(fd, text.encode("ascii"))
    finally:
        os.close(fd)


def _initdb(maker: _Maker, folder: str, password: str) -> None:
    data, password_file = os.path.join(folder, "data"), os.path.join(folder, "password")
    _write(password_file, password, maker.account)
    code, said = 1, ""
    for locale in [locale for since, locale in LOCALES if maker.binaries.major >= since]:
        argv = [maker.binaries.path("initdb"), "-D", data, *locale, f"--pwfile={password_file}", *INITDB]
        code, said = maker.run(argv, folder)
        if code == 0:
            return
        if NO_LOCALE not in said:
            break
    if NO_NAME in said:
        raise ServerStartError(
            f"uid {maker.account.uid} has no name on this machine and initdb wants one; set PGSHARE_DSN to a server, run as a user "
            "with a passwd entry, install libnss-wrapper, or allow user namespaces",
            returncode=code,
            log_tail=said,
        )
    raise ServerStartError(f"initdb ended with status {code}{_space(data)}", returncode=code, log_tail=said)


def _cheapen_password(maker: _Maker, folder: str, password: str) -> None:
    """Store the random password with one SCRAM iteration: the first connection of every run pays for each of them."""
    data = os.path.join(folder, "data")
    argv = [maker.binaries.path("postgres"), "--single", "-D", data, "-c", "fsync=off", DATABASE]
    code, said = maker.run(argv, folder, f"alter role {USER} password '{scram_verifier(password)}'\n")
    if code:
        raise ServerStartError(f"postgres --single ended with status {code}{_space(data)}", returncode=code, log_tail=said)


class _Maker(NamedTuple):
    """Runs a server's programs as the server's user."""

    binaries: Binaries
    account: Account
    deadline: Deadline

    def run(self, argv: list[str], folder: str, said: str = "") -> tuple[int, str]:
        """Run a program with ``said`` on its standard input; return its status and its last words.

        A user without a name gets one, for this program alone, by the first way that works.
        """
        code, answer = self._run_once(argv, {}, said)
        if code and NO_NAME in answer and not self.account.drop:
            for prefix, env in _ways_to_a_name(folder):
                named, told = self._run_once([*prefix, *argv], env, said)
                if NO_NAMESPACE not in told and NO_NAME not in told:
                    return named, told
        return code, answer

    def _run_once(self, argv: list[str], env: dict[str, str], said: str) -> tuple[int, str]:
        import subprocess

        uid, gid = self.account.for_child
        timeout = max(10.0, self.deadline.left)
        try:
            program = subprocess.Popen(
                argv,
                env={**child_env(self.binaries), **env},
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                user=uid,
                group=gid,
                extra_groups=[] if self.account.drop else None,
                umask=0o077,
                start_new_session=True,
            )
        except OSError as exc:
            raise ServerStartError(f"cannot run {argv[0]}: {exc}") from exc
        with program:
            try:
                output = program.communicate(said.encode(), timeout=timeout)[0]
            except BaseException as exc:
                _kill_session(program.pid)
                if isinstance(exc, subprocess.TimeoutExpired):
                    tail = _text(program.communicate()[0])
                    name = os.path.basename(argv[0])
                    raise ServerStartError(f"{name} was still running after {timeout:.0f}s", log_tail=tail) from exc
                raise
        return program.returncode, _text(output)


def _kill_session(pid: int) -> None:
    """End a program with what it has started: initdb's servers are in its process group."""
    import signal

    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _text(output: bytes | None) -> str:
    return (output or b"").decode("utf-8", "replace").strip()[-4000:]


def _space(path: str) -> str:
    free = free_bytes(path)
    return "" if free >= NEEDED else f"; {free >> 20} MiB ({free} bytes) are free at {path}, {NEEDED >> 20} MiB are needed"


def _ways_to_a_name(folder: str) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Yield (command prefix, environment) by which this uid may have a name: a library that answers for the system, a namespace."""
    for pattern in NAME_LIBRARIES:
        for library in glob.glob(pattern):
            entries = {"passwd": f"{USER}:x:{os.geteuid()}:{os.getegid()}::/:/bin/false\n", "group": f"{USER}:x:{os.getegid()}:\n"}
            for name, text in entries.items():
                with contextlib.suppress(FileExistsError):
                    _write(os.path.join(folder, name), text, None)
            files = {f"NSS_WRAPPER_{name.upper()}": os.path.join(folder, name) for name in entries}
            yield [], {"LD_PRELOAD": library, **files}
    prefix = _with_a_name()
    if prefix:
        yield prefix, {}


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
