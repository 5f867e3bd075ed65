"""The one command: ``python -m benchmarks [PART ...] [--rounds N] [--no-peers] [--name NAME] [--check]``."""

from __future__ import annotations

import argparse
import compileall
import contextlib
import json
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import harness
import pgshare
from benchmarks import parts as measured
from benchmarks import peers, projects, spawn, table, venvs
from pgshare import conninfo
from pgshare.binaries import find_binaries, readable_copy
from pgshare.ports import free_ports
from pgshare.run import cache_folder
from pgshare.settings import Settings
from pgshare.suite import suite_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.parts import Part, Server
    from pgshare.suite import Postgres

NAMES = ("start", "unused", "schema")
RESULTS = Path(__file__).parent / "results"


def read_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("part", nargs="*", choices=[*NAMES, []], help=f"what to measure: {', '.join(NAMES)} (default: all)")
    parser.add_argument(
        "-r", "--rounds", type=int, default=10, help="interleaved rounds (default 10; 'unused' runs three times as many)"
    )
    parser.add_argument("-P", "--no-peers", action="store_true", help="leave pytest-postgresql and testing.postgresql out")
    parser.add_argument("-o", "--name", default="latest", help="name of the result files")
    parser.add_argument("-c", "--check", action="store_true", help="exit with 1 when a budget is not kept")
    return parser.parse_args(argv)


@contextlib.contextmanager
def running_server(python: str) -> Iterator[tuple[Server, Postgres]]:
    """Run a server with the settings that ours has, for every variant that needs one already running."""
    from pgshare.account import current_account

    cache = cache_folder(None, os.environ)
    binaries = readable_copy(find_binaries(None, os.environ, cache, setting="PGSHARE_BIN"), current_account(), cache)
    (port,) = free_ports(1)
    with suite_postgres(port=port, settings=Settings()) as found:
        tcp = {**conninfo.parse(found.dsn, name="the server's DSN"), "host": "127.0.0.1"}
        yield measured.Server(dsn=found.dsn, python=python, tcp=tcp, bin_dir=str(binaries.bin_dir)), found


def find_python() -> str:
    """Return the interpreter to measure in: with this tree installed as users have it, else this one."""
    try:
        return venvs.ours(Path(cache_folder(None, os.environ)))
    except venvs.NoEnvironmentError as exc:
        print(f"measuring in this environment as it is: {exc}", flush=True)
        for package in (pgshare, harness):  # as pip does on installation: an editable one may never have been compiled
            compileall.compile_dir(os.path.dirname(str(package.__file__)), quiet=2)
        return sys.executable


def find_peers(args: argparse.Namespace) -> peers.Peers | None:
    if args.no_peers:
        return None
    try:
        return peers.ensure(Path(cache_folder(None, os.environ)))
    except venvs.NoEnvironmentError as exc:
        print(f"peers are left out: {exc}", flush=True)
        return None


def report(part: Part, samples: dict[str, list[spawn.Sample]], rounds: int) -> tuple[dict[str, object], str]:
    entries = table.compare(part, samples)
    text = table.markdown(part.title, entries, rounds)
    print(f"\n{text}", flush=True)
    return {"title": part.title, "rounds": rounds, "rows": entries}, text


def measure(args: argparse.Namespace, top: Path) -> tuple[dict[str, object], list[str]]:
    """Run what was asked for."""
    names = args.part or NAMES
    found: dict[str, object] = {}
    texts = []
    with running_server(find_python()) as (server, postgres):
        found["machine"] = machine(postgres)
        makers = {
            "start": lambda: measured.start(top, server, find_peers(args)),
            "unused": lambda: measured.unused(top, server),
            "schema": lambda: measured.schema(top, server),
        }
        for name in names:
            part = makers[name]()
            rounds = args.rounds * part.rounds
            print(f"{name}: {len(part.variants)} variants, {rounds} rounds", flush=True)
            samples = spawn.interleave(part.variants, rounds, top / "out" / "stamps", lambda text: print(text, flush=True))
            for view in [part, measured.effort(part), measured.end(part)] if name == "start" else [part]:
                found[view.name], text = report(view, samples, rounds)
                texts.append(text)
    return found, texts


def machine(postgres: Postgres) -> dict[str, object]:
    from importlib.metadata import version

    return {
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "postgres": postgres.version,
        "data": postgres.place.split(" (")[0],
        "pytest": version("pytest"),
        "psycopg": version("psycopg"),
        "load": round(os.getloadavg()[0], 2),
    }


def save(name: str, found: dict[str, object], texts: Sequence[str]) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    facts = ", ".join(f"{key} {value}" for key, value in found["machine"].items())  # type: ignore[attr-defined]
    (RESULTS / f"{name}.md").write_text("\n".join([f"# Measured: {name}\n\n{facts}\n", *texts]))
    print(f"written: {RESULTS / name}.json and .md")


def main(argv: Sequence[str] | None = None) -> int:
    args = read_arguments(argv)
    with tempfile.TemporaryDirectory(prefix="pgbench") as folder:
        top = Path(folder)
        projects.write(top)
        (top / "out").mkdir()
        (top / "out").chmod(0o777)
        try:
            found, texts = measure(args, top)
        except spawn.FailedRunError as exc:
            print(f"benchmark stopped: {exc}", file=sys.stderr)
            return 2
    save(args.name, found, texts)
    rows = [row for part in found.values() if isinstance(part, dict) for row in part.get("rows", ())]
    over = [str(row["name"]) for row in rows if row.get("within") is False]
    print(f"over budget: {', '.join(over)}" if over else "every budget is kept")
    return 1 if over and args.check else 0


if __name__ == "__main__":
    sys.exit(main())
