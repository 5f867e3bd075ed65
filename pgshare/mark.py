"""The mark on everything we make inside a server: who made it, for which test. The mark decides, never the name alone."""

from __future__ import annotations

import hashlib
import json
import time
from typing import NamedTuple

PREFIX = "pgshare "
VERSION = 1
# Our own class of two-integer advisory locks ("pgsh"): a test's own keys cannot meet it by accident.
LOCK_CLASS = 0x70677368


class Mark(NamedTuple):
    """One thing's maker: run, worker, full test id, and when (seconds since the epoch; in the future for what is held)."""

    run: str
    worker: str
    test: str
    at: int

    @classmethod
    def now(cls, run: str, worker: str, test: str) -> Mark:
        """Return the mark for something made now."""
        return cls(run=run, worker=worker, test=test, at=int(time.time()))

    @property
    def lock_key(self) -> int:
        """The second integer of the run's advisory lock."""
        return lock_key(self.run)

    def text(self) -> str:
        """Return the comment: ASCII whatever the test is called, so that every server encoding can hold it."""
        data = {"v": VERSION, "run": self.run, "worker": self.worker, "test": self.test, "at": self.at}
        return PREFIX + json.dumps(data, separators=(",", ":"))


def lock_key(run: str) -> int:
    """Return the signed 32-bit advisory lock key of a run."""
    return int.from_bytes(hashlib.blake2b(run.encode("ascii"), digest_size=4).digest(), "big", signed=True)


def read_mark(comment: str | bytes | None) -> Mark | None:
    """Return the mark in a comment; None for anything that is not exactly ours."""
    text = comment.decode("ascii", "replace") if isinstance(comment, bytes) else comment
    if not text or not text.startswith(PREFIX):
        return None
    try:
        data = json.loads(text[len(PREFIX) :])
        if data["v"] != VERSION:
            return None
        fields = {key: data[key] for key in ("run", "worker", "test")}
        if not all(isinstance(value, str) for value in fields.values()) or not data["run"].isascii():
            return None
        return Mark(**fields, at=int(data["at"]))
    except (ValueError, TypeError, KeyError):
        return None
