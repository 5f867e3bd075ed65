"""Virtual environments to measure in, made below the cache folder: ours as users have it, and the peers'."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[1]
# In the measured environment: what a test of ours needs, as new as it is here.
WANTED = ("pytest", "pytest-xdist", "psycopg", "psycopg-binary", "filelock")


class NoEnvironmentError(RuntimeError):
    """An environment cannot be made here; the message says why."""


def make(folder: Path, base: str, wanted: Sequence[str]) -> str:
    """Return the interpreter of an environment with ``wanted`` in it, made by ``base`` on first use."""
    python = folder / "bin" / "python"
    mark = folder / ".ready"
    if not mark.exists() or mark.read_text() != "\n".join(wanted):
        run([base, "-m", "venv", "--clear", "--without-pip", str(folder)])
        install(str(python), *wanted)
        mark.write_text("\n".join(wanted))
    return str(python)


def install(python: str, *wanted: str) -> None:
    """Install into the environment of ``python`` with our own pip."""
    run([sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check", *wanted])


def run(argv: Sequence[str]) -> None:
    """Run a preparing command; NoEnvironmentError with its last words."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise NoEnvironmentError(f"{' '.join(argv[:4])} ... failed: {lines[-1] if lines else done.returncode}")


def ours(cache: Path) -> str:
    """Return an interpreter with this very tree installed as users install it, afresh each time.

    An editable installation would mislead: pytest rewrites the modules of an installed plugin, and not those of an editable one.
    """
    from importlib.metadata import version

    base = str(getattr(sys, "_base_executable", sys.executable))
    python = make(cache / "benchmark-ours", base, [f"{name}=={version(name)}" for name in WANTED])
    install(python, "--force-reinstall", "--no-deps", str(ROOT))
    return python
