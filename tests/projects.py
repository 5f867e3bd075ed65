"""Run pytest on a throw-away project in a process of its own, with a scrubbed environment, and see what it left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

from pgshare.deadline import Deadline, NotYet, poll

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

KEPT = ("PATH", "LANG", "TERM", "PYTHONPATH", "VIRTUAL_ENV")
PLUGINS = ("-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:pytest_django", "-p", "no:asyncio", "-p", "no:anyio")


def link_cache(source: str, target: str) -> None:
    """Give a new state folder the files of a warm cache, without copying them."""
    os.mkdir(target, 0o711 if os.geteuid() == 0 else 0o700)
    for name in os.listdir(source):
        path = os.path.join(source, name)
        if os.path.isfile(path) and name.startswith(("data-", "version-")):
            with contextlib.suppress(FileNotFoundError):
                os.link(path, os.path.join(target, name))


@dataclass(frozen=True)
class Result:
    """What a run printed, how it ended, how long it took (seconds)."""

    code: int
    out: str
    seconds: float

    def count(self, outcome: str) -> int:
        """The number before ``outcome`` in pytest's closing line."""
        words = self.out.rstrip().splitlines()[-1].replace(",", "").split()
        return int(words[words.index(outcome) - 1]) if outcome in words else 0


class Project:
    """A project folder and the state folder that its runs use."""

    def __init__(self, folder: Path, state: str) -> None:
        self.folder, self.state = folder, state

    def write(self, **files: str) -> Project:
        """Write files: ``test_a="..."`` becomes test_a.py; ``pyproject="..."`` becomes pyproject.toml."""
        for name, text in files.items():
            path = self.folder / (f"{name}.toml" if name == "pyproject" else f"{name}.py")
            path.write_text(textwrap.dedent(text))
        return self

    def env(self, **extra: str | None) -> dict[str, str]:
        """The environment of a run: nothing of the outer run's but what a shell has."""
        found = {name: os.environ[name] for name in KEPT if name in os.environ}
        found |= {"HOME": str(self.folder), "PGSHARE_STATE_DIR": self.state}
        found |= {name: value for name, value in extra.items() if value is not None}
        return {name: value for name, value in found.items() if extra.get(name, value) is not None}

    def run(self, *args: str, timeout: float = 90.0, plugins: tuple[str, ...] = PLUGINS, **env: str | None) -> Result:
        """Run pytest to its end."""
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *plugins, *args],
            cwd=self.folder,
            env=self.env(**env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Result(done.returncode, done.stdout, time.monotonic() - began)

    @contextlib.contextmanager
    def running(self, *args: str, **env: str | None) -> Iterator[subprocess.Popen[bytes]]:
        """Start pytest in a session of its own; whatever is left of it at the end is killed."""
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *PLUGINS, *args],
            cwd=self.folder,
            env=self.env(**env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    @property
    def prefix(self) -> str:
        """What the name of everything of this project's runs starts with."""
        return f"pgshare_{blake2b(os.fsencode(str(self.folder)), digest_size=2).hexdigest()}_"

    def residue(self) -> list[str]:
        """What is left of this project's runs: folders, memory, processes (zombies are dead)."""
        runs = os.path.join(self.state, "runs")
        left = [f"run {name}" for name in (os.listdir(runs) if os.path.isdir(runs) else [])]
        left += [f"memory {name}" for name in os.listdir("/dev/shm") if name.startswith(self.prefix)]
        return left + [f"process {pid} {text}" for pid, text in processes(self.state, self.prefix)]

    def wait_clean(self) -> None:
        """Wait until nothing is left."""

        def attempt() -> None:
            left = self.residue()
            if left:
                raise NotYet("; ".join(left))

        poll("a clean machine", attempt, Deadline.after(20))


def processes(*texts: str) -> list[tuple[int, str]]:
    """The living processes whose command line holds one of ``texts``."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                line = file.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        except OSError:
            continue
        if int(entry) != os.getpid() and any(text in line for text in texts) and "-m pytest" not in line:
            found.append((int(entry), line[:120]))
    return found


def until(what: str, probe: Callable[[], object], seconds: float = 20.0) -> object:
    """Wait until ``probe`` gives something true; return it."""

    def attempt() -> object:
        found = probe()
        if not found:
            raise NotYet(f"last seen: {found!r}")
        return found

    return poll(what, attempt, Deadline.after(seconds))
