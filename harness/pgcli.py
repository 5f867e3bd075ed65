"""``harness pg ...``: the database side of the command."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pgshare.errors import SettingError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from typing import TextIO

    from pgshare.settings import Settings


def add_commands(nouns: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``pg`` and its verbs."""
    verbs = nouns.add_parser("pg", help="the server that PGSHARE_DSN names").add_subparsers(
        dest="verb", metavar="VERB", required=True
    )
    probe = verbs.add_parser("probe", help="connect once and say what the server is")
    probe.add_argument("--wait", type=float, default=None, metavar="SECONDS", help="how long the server may take to answer")
    schemas = verbs.add_parser("schemas", help="list what runs have made in this database")
    url = verbs.add_parser("url", help="print the DSN of a kept schema, or of the server, password included")
    url.add_argument("name", nargs="?", help="name of a kept schema, as the test run printed it")
    url.add_argument("--as", dest="driver", default="libpq", metavar="DRIVER", help="libpq, asyncpg, sqlalchemy, ...")
    sweep = verbs.add_parser("sweep", help="drop what dead runs left in this database")
    sweep.add_argument("--dry-run", action="store_true", help="only say what would be dropped")
    sweep.add_argument("--min-age", type=float, default=600.0, metavar="SECONDS", help="leave younger things alone (600)")
    sweep.add_argument("--apart", type=float, default=60.0, metavar="SECONDS", help="time between the two looks (60)")
    sweep.add_argument("--limit", type=int, default=200, help="drop at most this many (200)")
    for parser, run in ((probe, run_probe), (schemas, run_schemas), (url, run_url), (sweep, run_sweep)):
        parser.add_argument("--dsn", default=None, help="instead of PGSHARE_DSN")
        parser.add_argument("--format", choices=("text", "json"), default="text")
        parser.set_defaults(run=run)


def _settings(arguments: argparse.Namespace, env: Mapping[str, str]) -> Settings:
    from pgshare.settings import resolve_settings

    flags = {"dsn": arguments.dsn, "wait": getattr(arguments, "wait", None)}
    return resolve_settings(flags=flags, env=env, table={})


def _dsn(arguments: argparse.Namespace, env: Mapping[str, str]) -> tuple[str, str, Settings]:
    from pgshare import conninfo

    settings = _settings(arguments, env)
    if settings.dsn is None:
        raise SettingError("no server is named; set PGSHARE_DSN, or pass --dsn")
    name = "--dsn" if arguments.dsn else settings.named("dsn")
    return conninfo.build(conninfo.fill_from_env(conninfo.parse(settings.dsn, name=name), env)), name, settings


def run_probe(arguments: argparse.Namespace, env: Mapping[str, str], stdout: TextIO, stderr: TextIO) -> int:
    """Print what the server is, or why tests cannot run against it."""
    from pgshare import conninfo, probe
    from pgshare.deadline import Deadline

    dsn, name, settings = _dsn(arguments, env)
    facts, conn = probe.open_probed(dsn, Deadline.after(settings.wait), name=name)
    with conn:
        (in_use,) = conn.execute("select count(*) from pg_stat_activity where backend_type = 'client backend'").fetchone() or (0,)
    data = {"schema": 1, **facts._asdict(), "in_use": in_use}
    if arguments.format == "json":
        stdout.write(json.dumps(data) + "\n")
    else:
        stdout.write(f"Postgres {facts.version}, database {facts.database!r}, role {facts.user!r}, encoding {facts.encoding}\n")
        free = facts.max_connections - facts.reserved - in_use
        stdout.write(f"connections: {in_use} in use, {free} free of {facts.max_connections}\n")
    probe.check_usable(facts, name=name)
    stderr.write(f"tests can run against {conninfo.redact(dsn)}\n")
    return 0


def run_schemas(arguments: argparse.Namespace, env: Mapping[str, str], stdout: TextIO, stderr: TextIO) -> int:
    """List what carries our mark."""
    from pgshare import sweep
    from pgshare.admin import open_slot

    dsn, name, _ = _dsn(arguments, env)
    with open_slot(dsn, name=name, application_name="pgshare look") as conn:
        found = sweep.look(conn)
    if arguments.format == "json":
        stdout.write(json.dumps({"schema": 1, "items": [item.data() for item in found]}) + "\n")
        return 0
    for item in found:
        data = item.data()
        stdout.write(f"{item.kind} {item.name}  {'alive' if item.alive else 'dead'}  {data['age']:.0f}s  {item.mark.test}\n")
    if not found:
        stderr.write("nothing of ours is in this database\n")
    return 0


def run_url(arguments: argparse.Namespace, env: Mapping[str, str], stdout: TextIO, _: TextIO) -> int:
    """Print a DSN. The one place that prints a password, because the user asks for it."""
    from pgshare import conninfo, drivers, keep
    from pgshare.run import state_root

    if arguments.name is None:
        dsn, name, _settings_used = _dsn(arguments, env)
    else:
        top = state_root(_settings(arguments, env).state_dir, env)
        kept = {str(record["name"]): str(record["dsn"]) for record in keep.records(top)}
        if arguments.name not in kept:
            known = ", ".join(kept) or "none"
            raise SettingError(f"no kept schema is called {arguments.name!r}; kept: {known} (run the tests with --pg-keep failed)")
        dsn, name = kept[arguments.name], arguments.name
    stdout.write(drivers.url(conninfo.parse(dsn, name=name), arguments.driver) + "\n")
    return 0


def run_sweep(arguments: argparse.Namespace, env: Mapping[str, str], stdout: TextIO, stderr: TextIO) -> int:
    """Drop what dead runs left; 1 when something had to stay."""
    from pgshare import sweep

    dsn, name, _ = _dsn(arguments, env)
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
    return 1 if report.kept else 0
