"""What a run created, on disk before it exists: one file of rows per run, written whole and atomically.

A row goes intended -> created -> released. Intent is fsynced before the create call, so a crash leaves a record of nothing
(which recovery drops) and never a thing that nobody knows. Format: features S15b. The keeper writes it, so no heavy import.
"""

from __future__ import annotations

import fcntl
import os
import time

from pgshare.errors import InventoryError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Row = dict[str, object]

NAME = "inventory.json"
VERSION = 1
KINDS = ("container", "process", "schema", "database", "role", "network", "volume", "dir", "socket", "shm")


class Inventory:
    """The rows of one run folder. Every change is one temp file, one fsync, one rename."""

    def __init__(self, folder: str, *, run_id: str, owner: Mapping[str, object] | None = None) -> None:
        self._folder, self._run_id, self._owner = folder, run_id, dict(owner or {})
        self._path = os.path.join(folder, NAME)

    def intend(self, rows: Iterable[tuple[str, str, str]]) -> list[str]:
        """Record (kind, name, root) rows before they are created; return their ids."""
        with self._locked():
            known = self.rows()
            made = []
            for kind, name, root in rows:
                if kind not in KINDS:
                    raise ValueError(f"unknown kind {kind!r}; known: {', '.join(KINDS)}")
                row_id = f"{len(known) + 1}"
                known.append(self._row(row_id, kind, name, root))
                made.append(row_id)
            self._write(known)
        return made

    def _row(self, row_id: str, kind: str, name: str, root: str) -> Row:
        return {
            "id": row_id,
            "kind": kind,
            "name": name,
            "engine": "",
            "run_id": self._run_id,
            "owner": self._owner,
            "identity": {},
            "root": root,
            "registered_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "state": "intended",
        }

    def created(self, identities: Mapping[str, Mapping[str, object]]) -> None:
        """Add what was created under each row id: the identity that removal will check again."""
        self._update({row_id: {"state": "created", "identity": dict(who)} for row_id, who in identities.items()})

    def released(self, row_ids: Iterable[str]) -> None:
        """Mark rows whose thing is verified absent."""
        self._update({row_id: {"state": "released"} for row_id in row_ids})

    def _update(self, changes: Mapping[str, Mapping[str, object]]) -> None:
        with self._locked():
            rows = self.rows()
            for row in rows:
                row.update(changes.get(str(row["id"]), {}))
            self._write(rows)

    def rows(self, *, move: bool = True) -> list[Row]:
        """Return every row; an unreadable file is moved aside, reported as InventoryError, and nothing is guessed.

        Who only looks leaves it where it is: ``move=False``.
        """
        try:
            with open(self._path, encoding="utf-8") as file:
                text = file.read()
        except FileNotFoundError:
            return []
        import json

        try:
            data = json.loads(text)
            if data["version"] != VERSION:
                raise InventoryError(f"{self._path} has version {data['version']!r}, this pgshare reads {VERSION}")
            return [dict(row) for row in data["rows"]]
        except (ValueError, TypeError, KeyError) as exc:
            if not move:
                raise InventoryError(f"{self._path} cannot be read ({exc})") from exc
            aside = self._move_aside()
            raise InventoryError(
                f"{self._path} cannot be read ({exc}); moved to {aside}: look at it, nothing is removed by guess"
            ) from exc

    def moved_aside(self) -> list[str]:
        """Return what to do about each file that was moved aside: it may name things that are still there."""
        found = sorted(name for name in os.listdir(self._folder) if name.startswith(f"{NAME}.corrupt-"))
        return [f"{os.path.join(self._folder, name)} could not be read; look at it, then remove {self._folder}" for name in found]

    def _move_aside(self) -> str:
        number = 1
        while os.path.exists(f"{self._path}.corrupt-{number}"):
            number += 1
        aside = f"{self._path}.corrupt-{number}"
        os.rename(self._path, aside)
        return aside

    def _write(self, rows: list[Row]) -> None:
        temporary = f"{self._path}.{os.getpid()}.tmp"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(fd, (to_json({"version": VERSION, "rows": rows}) + "\n").encode("ascii"))
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, self._path)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _locked(self) -> _Locked:
        return _Locked(self._path + ".lock")


class _Locked:
    def __init__(self, path: str) -> None:
        self._path, self._fd = path, -1

    def __enter__(self) -> None:
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def to_json(value: object) -> str:
    """Write plain data as ASCII JSON: the json package costs the keeper 9 ms at start, so only reading is left to it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return _quote(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{_quote(str(key))}:{to_json(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(to_json(item) for item in value) + "]"
    raise TypeError(f"cannot record {value!r}")


def _quote(text: str) -> str:
    out = []
    for char in text:
        code = ord(char)
        if char in '"\\':
            out.append("\\" + char)
        elif 32 <= code < 127:
            out.append(char)
        elif code > 0xFFFF:
            code -= 0x10000
            out.append(f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}")
        else:
            out.append(f"\\u{code:04x}")
    return '"' + "".join(out) + '"'
