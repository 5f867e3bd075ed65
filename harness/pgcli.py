"""``harness pg ...``: the database side of the command."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from harness.arguments import count, seconds
from harness.exits import FINDING, MISSING, OK
from pgshare.errors import InventoryError, SettingError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from typing import TextIO

    import psycopg

    from pgshare.probe import ServerFacts
    from pgshare.settings import Settings


def add_commands(nouns: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``pg`` and its verbs."""
    verbs = nouns.add_parser("pg", help="the server that PGSHARE_DSN names").add_subparsers(
        dest="verb", metavar="VERB", required=True
    )
    probe = verbs.add_parser("probe", help="connect once and say what the server is")
    schemas = verbs.add_parser("schemas", help="list what runs have made in this database")
    url = verbs.add_parser("url", help="print the DSN of a kept schema, or of the server, password included")
    url.add_argument("name", nargs="?", help="name of a kept schema, as the test run printed it")
    url.add_argument("--as", dest="driver", default="libpq", metavar="DRIVER", help="libpq, asyncpg, sqlalchemy, ...")
    sweep = verbs.add_parser("sweep", help="drop what dead runs left in this database")
    sweep.add_argument("--dry-run", action="store_true", help="only say what would be dropped")
    sweep.add_argument("--min-age", type=seconds, default=600.0, metavar="TIME", help="leave younger things alone (10m)")
    sweep.add_argument("--apart", type=seconds, default=60.0, metavar="TIME", help="time between the two looks (60s)")
    sweep.add_argument("--limit", type=count, default=200, help="drop at most this many (200)")
    for parser, run in ((probe, run_probe), (schemas, run_schemas), (url, run_url), (sweep, run_sweep)):
        parser.add_argument("--dsn", default=None, help="instead of PGSHARE_DSN")
        parser.add_argument("--wait", type=seconds, default=None, metavar="TIME", help="how long the server may take (3s)")
        parser.add_argument("--format", choices=("text", "json"), default="text")
        parser.set_defaults(run=run)


def _settings(arguments: argparse.Namespace, env: Mapping[str, str]) -> Settings:
    from pgshare.settings import resolve_settings

    flags = {"dsn": arguments.dsn, "wait": arguments.wait}
    return resolve_settings(flags=flags, env=env, table={})


def _dsn(arguments: argparse.Namespace, env: Mapping[str, str]) -> tuple[str, str, Settings]:
    from pgshare import conninfo

    settings = _settings(arguments, env)
    if settings.dsn is None:
        raise SettingError("no server is named; set PGSHARE_DSN, or pass --dsn")
    name = "--dsn" if arguments.dsn else settings.named("dsn")
    return conninfo.build(conninfo.fill_from_env(conninfo.parse(settings.dsn, name=name), env)), name, settings


def _open(dsn: str, name: str, settings: Settings) -> tuple[ServerFacts, psycopg.Connection]:
    """Connect as tests do: what cannot come true ends at once, the rest is waited for as long as the settings say."""
    from pgshare import probe
    from pgshare.deadline import Deadline

    return probe.open_probed(dsn, Deadline.after(settings.wait), name=name)


USE = """
select count(*), (select rolsuper or rolcreatedb from pg_roles where rolname = current_user)
from pg_stat_activity where backend_type = 'client backend'
"""


def run_probe(arguments: argparse.Namespace, env: Mapping[str, str], stdout: TextIO, stderr: TextIO) -> int:
    """Print what the server is, or why tests cannot run against it."""
    from pgshare import conninfo, probe

    dsn, name, settings = _dsn(arguments, env)
    facts, conn = _open(dsn, name, settings)
    with conn:
        in_use, can_create_databases = conn.execute(USE).fetchone() or (0, False)
    if arguments.format == "json":
        data = {"schema": 1, **facts._asdict(), "can_create_databases": can_create_databases, "in_use": in_use}
        stdout.write(json.dumps(data) + "\n")
    else:
        stdout.write(f"Postgres {facts.version}, database {facts.database!r}, role {facts.user!r}, encoding {facts.encoding}\n")
        may = {True: "yes", False: "no"}
        stdout.write(f"may create schemas: {may[facts.can_create]}, databases (pg_database): {may[bool(can_create_databases)]}\n")
        free = facts.max_connections - facts.reserved - in_use
        stdout.write(f"connections: {in_use} in use, {free} free of {facts.max_connections}\n")
    probe.check_usable(facts, name=name)
    stderr.write(f"tests can run against {conninfo.redact(dsn)}\n")
    return OK


def run_schemas(arguments: argparse.Namespace, env: Mapping[str, str], stdout: TextIO, stderr: TextIO) -> int:
    """List what carries our mark."""
    from pgshare import sweep

    _, conn = _open(*_dsn(arguments, env))
    with conn:
        found = sweep.look(conn)
    if arguments.format == "json":
        stdout.write(json.dumps({"schema": 1, "items": [item.data() for item in found]}) + "\n")
        return OK
    for item in found:
        data = item.data()
        stdout.write(f"{item.kind} {item.name}  {'alive' if item.alive else 'dead'}  {data['age']:.0f}s  {item.mark.test}\n")
    if not found:
        stderr.write("nothing of ours is in this database\n")
    return OK


def run_url(arguments: argparse.Namespace, env: Mapping[str, str], stdout: TextIO, stderr: TextIO) -> int:
    """Print a DSN. The one place that prints a password, because the user asks for it."""
    from pgshare import conninfo, drivers

    if arguments.name is None:
        dsn, name, _ = _dsn(arguments, env)
    else:
        kept, name = _kept(arguments, env), arguments.name
        if name not in kept:
            known = ", ".join(kept) or "none"
            stderr.write(f"harness: no kept schema is called {name!r}; kept: {known} (run the tests with --pg-keep failed)\n")
            return MISSING
        dsn = kept[name]
    stdout.write(drivers.url(conninfo.parse(dsn, name=name), arguments.driver) + "\n")
    return OK


def _kept(arguments: argparse.Namespace, env: Mapping[str, str]) -> dict[str, str]:
    """Return the DSN of every kept schema by its name."""
    from pgshare import keep
    from pgshare.run import state_root

    top = state_root(_settings(arguments, env).state_dir, env)
    try:
        return {str(record["name"]): str(record["dsn"]) for record in keep.records(top)}
    except (ValueError, TypeError, KeyError) as exc:
        raise InventoryError(f"a record of a kept schema below {top}/runs cannot be read: {type(exc).__name__}: {exc}") from exc


def run_sweep(arguments: argparse.Namespace, env: Mapping[str, str], stdout: TextIO, stderr: TextIO) -> int:
    """Drop what dead runs left; 1 when something had to stay."""
    from pgshare import sweep

    dsn, name, settings = _dsn(arguments, env)
    _open(dsn, name, settings)[1].close()
    report = sweep.sweep(
        dsn,
        name=name,
        apart=arguments.apart,
        min_age=arguments.min_age,
        limit=arguments.limit,
        dry_run=arguments.dry_run,
    )
    if arguments.format == "json":
        kept = [{**item.data(), "reason": reason} for item, reason in report.kept]
        stdout.write(json.dumps({"schema": 1, "dropped": [item.data() for item in report.dropped], "kept": kept}) + "\n")
    else:
        verb = "would drop" if arguments.dry_run else "dropped"
        for item in report.dropped:
            stdout.write(f"{verb} {item.kind} {item.name}  {item.mark.test}\n")
        for item, reason in report.kept:
            stdout.write(f"kept {item.kind} {item.name}: {reason}\n")
    stderr.write(f"{len(report.dropped)} {'found' if arguments.dry_run else 'dropped'}, {len(report.kept)} kept\n")
    return FINDING if report.kept else OK
