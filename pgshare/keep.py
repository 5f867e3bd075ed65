"""What ``--pg-keep`` leaves for a look: a record of each kept schema, so that one command finds it again."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgshare.run import Run
    from pgshare.schema import Schema

FOLDER = "kept"
SERVER_KEPT_FOR = 3600.0  # seconds that a server of ours stays up for kept schemas


def record(run: Run, schema: Schema, *, server_ours: bool) -> None:
    """Remember ``schema`` in the run's folder, 0600: the record holds the DSN with its password."""
    run.make_folders()
    folder = os.path.join(run.folder, FOLDER)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, f"{schema.name}.json")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        json.dump({"name": schema.name, "dsn": schema.dsn, "test": schema.test, "run": run.id, "server_ours": server_ours}, file)


def records(top: str) -> Iterator[dict[str, object]]:
    """Yield every record below the state folder ``top``."""
    runs = os.path.join(top, "runs")
    for run_id in sorted(os.listdir(runs)) if os.path.isdir(runs) else []:
        yield from records_of(os.path.join(runs, run_id))


def records_of(run_folder: str) -> Iterator[dict[str, object]]:
    """Yield the records of one run."""
    folder = os.path.join(run_folder, FOLDER)
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            yield json.load(file)


def how_to_connect(name: str) -> str:
    """Return the one command that connects to a kept schema; the password is only in the record."""
    return f'psql "$(harness pg url {name})"'
