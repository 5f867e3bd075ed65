"""``python -m harness``: the same command where the script is not on PATH."""

from __future__ import annotations

from harness.cli import entry

if __name__ == "__main__":
    entry()
