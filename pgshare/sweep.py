"""Leftovers of dead runs on a server that others use too: found by the mark inside the database, never by name alone.

A run is alive while a process of it holds the run's advisory lock, which is READ from pg_locks (a try would succeed from
another database, and re-entrantly through a pooler). A sweep needs the lock free on two looks, no session that names the
run, and an old mark.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pgshare import mark as marks
from pgshare.admin import OWN_SETTINGS, open_slot
from pgshare.deadline import Deadline, NotYet, poll
from pgshare.errors import NotReadyError, SettingError

if TYPE_CHECKING:
    import psycopg

    from pgshare.mark import Mark

APART, MIN_AGE, LIMIT = 60.0, 600.0, 200
BUDGET = 3.0  # seconds that a run spends at its end on what others left
MARKED = """
select 'schema', n.nspname::text, obj_description(n.oid, 'pg_namespace') from pg_namespace n
where obj_description(n.oid, 'pg_namespace') like 'pgshare {%'
union all
select 'database', d.datname::text, shobj_description(d.oid, 'pg_database') from pg_database d
where shobj_description(d.oid, 'pg_database') like 'pgshare {%'
union all -- made, and its maker ended before it could be marked: the schema of its name stands in for it
select 'database', d.datname::text, obj_description(n.oid, 'pg_namespace')
from pg_database d join pg_namespace n on n.nspname = d.datname
where shobj_description(d.oid, 'pg_database') is null and obj_description(n.oid, 'pg_namespace') like 'pgshare {%'
order by 1 -- databases first: the schema that stands in for one is its record
"""
ONE = f"select * from ({MARKED.replace('%', '%%')}) m(kind, name, comment) where name = %(name)s"  # noqa: S608  # constants
LOCKS = "select objid::bigint from pg_locks where locktype = 'advisory' and classid = %s and objsubid = 2 and granted"
APPS = "select application_name::text from pg_stat_activity where application_name like 'pgshare %'"


@dataclass(frozen=True, kw_only=True)
class Marked:
    """A schema or database that carries our mark. ``alive``: its run is."""

    kind: str
    name: str
    mark: Mark
    alive: bool

    def data(self) -> dict[str, object]:
        """Return plain data for JSON."""
        age = round(max(0.0, time.time() - self.mark.at), 1)
        return {"kind": self.kind, "name": self.name, "run": self.mark.run, "test": self.mark.test, "age": age, "alive": self.alive}


@dataclass(kw_only=True)
class SweepReport:
    """What a sweep did."""

    dropped: list[Marked] = field(default_factory=list)
    kept: list[tuple[Marked, str]] = field(default_factory=list)
    left: int = 0  # dead things that its bounds did not reach
    took: float = 0.0  # seconds


def look(conn: psycopg.Connection, only: str | None = None) -> list[Marked]:
    """Return everything marked as ours in this database, and the server's marked databases; or just what is called ``only``."""
    locks = {int(row[0]) for row in conn.execute(LOCKS, [marks.LOCK_CLASS])}
    named = [_text(row[0]) for row in conn.execute(APPS)]
    found = []
    for kind, name, comment in conn.execute(MARKED if only is None else ONE, None if only is None else {"name": only}).fetchall():
        mark = marks.read_mark(comment)
        # The name must be the one that this mark's run gives: a comment copied by hand onto something else is not ours.
        if mark is not None and _text(name).startswith(f"pgshare_{mark.run}_"):
            alive = mark.lock_key % (1 << 32) in locks or any(mark.run in app for app in named)
            found.append(Marked(kind=_text(kind), name=_text(name), mark=mark, alive=alive))
    return found


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def sweep(  # noqa: PLR0913  # each bound is a promise of its own
    dsn: str,
    *,
    name: str = "PGSHARE_DSN",
    apart: float = APART,
    min_age: float = MIN_AGE,
    limit: int = LIMIT,
    dry_run: bool = False,
    only_run: str | None = None,
) -> SweepReport:
    """Drop what dead runs left in the database at ``dsn``; at most ``limit`` things. Times are in seconds.

    Raises SettingError for a pooler in between, where locks and sessions tell nothing.
    """
    with open_slot(dsn, name=name, application_name="pgshare sweep") as conn:
        conn.execute(OWN_SETTINGS)
        refuse_pooler(conn, name)
        dead = _dead(conn, min_age, only_run)
        report = SweepReport()
        if dead and apart > 0:
            _pass(apart)
            second = {(item.kind, item.name) for item in _dead(conn, min_age, only_run)}
            dead = [item for item in dead if (item.kind, item.name) in second]
        began = time.monotonic()
        report.left = len(dead[limit:])
        for item in dead[:limit]:
            problem = "" if dry_run else _drop(conn, item)
            if problem:
                report.kept.append((item, problem))
            else:
                report.dropped.append(item)
        report.took = time.monotonic() - began
    return report


def _dead(conn: psycopg.Connection, min_age: float, only_run: str | None) -> list[Marked]:
    now = time.time()
    dead = [item for item in look(conn) if not item.alive and only_run in (None, item.mark.run)]
    # Without an age nothing is spared, not even what is held for a look.
    return [item for item in dead if min_age <= 0 or now - item.mark.at >= min_age]


def _pass(seconds: float) -> None:
    """Let the time between two looks pass."""

    def never() -> None:
        raise NotYet("waiting for the second look")

    try:
        poll("the second look", never, Deadline.after(seconds), pauses=iter(lambda: 1.0, None))
    except NotReadyError:
        return


def refuse_pooler(conn: psycopg.Connection, name: str) -> None:
    """Raise SettingError when a pooler answers: another server process may serve the next statement."""
    asked = conn.info.backend_pid
    row = conn.execute("select pg_backend_pid()").fetchone()
    if row is None or row[0] != asked:
        raise SettingError(
            f"{name} goes through a connection pooler, where nobody can tell which runs are alive; name the server itself"
        )


def _drop(conn: psycopg.Connection, item: Marked) -> str:
    """Drop one thing whose mark is still the same; return why it stayed."""
    import psycopg
    from psycopg import sql

    current = {other.kind: other for other in look(conn, item.name)}.get(item.kind)
    if current is None:
        return ""
    if current.mark != item.mark or current.alive:
        return "its mark changed or its run is alive"
    what = sql.SQL("schema if exists {} cascade" if item.kind == "schema" else "database if exists {}")
    statement = sql.SQL("set lock_timeout = '2s'") if item.kind == "database" else sql.SQL("set local lock_timeout = '2s'")
    try:
        if item.kind == "database":
            conn.execute(statement)
            conn.execute(sql.SQL("drop ") + what.format(sql.Identifier(item.name)))
        else:
            conn.execute(statement + sql.SQL("; drop ") + what.format(sql.Identifier(item.name)))
    except psycopg.Error as exc:
        return " ".join(str(exc).split())
    return ""


def hold(conn: psycopg.Connection, name: str, seconds: float) -> None:
    """Keep what is called ``name`` from being swept for ``seconds``, also when its run is over: somebody wants to look at it."""
    from psycopg import sql

    for item in look(conn, name):
        mark = item.mark._replace(at=int(time.time() + seconds)).text()
        conn.execute(sql.SQL("comment on {} {} is {}").format(sql.SQL(item.kind), sql.Identifier(name), sql.Literal(mark)))


def sweep_seen_before(conn: psycopg.Connection, seen_file: str, *, limit: int = LIMIT, budget: float = BUDGET) -> SweepReport:
    """Take the one look of a run: drop what an earlier run saw dead at least APART seconds ago, remember what is dead now.

    Starts nothing more after ``budget`` seconds: somebody waits for their run's end. ``seen_file`` keeps when each dead thing was
    first seen; that is the first of the two looks.
    """
    import json
    import os

    report = SweepReport()
    dead = _dead(conn, MIN_AGE, None)
    try:
        with open(seen_file, encoding="utf-8") as file:
            before = dict(json.load(file))
    except (OSError, ValueError, TypeError):
        before = {}
    if not dead and not before:
        return report
    now = time.time()
    seen: dict[str, float] = {}
    spent = Deadline.after(budget)
    for item in dead:
        key = f"{_server(conn)} {item.kind} {item.name}"
        first = float(before.get(key, now))
        if now - first < APART:
            seen[key] = first
            continue
        if len(report.dropped) + len(report.kept) >= limit or spent.expired:
            seen[key] = first
            report.left += 1
            continue
        problem = _drop(conn, item)
        if problem:
            seen[key] = first
            report.kept.append((item, problem))
        else:
            report.dropped.append(item)
    report.took = spent.waited
    with open(f"{seen_file}.{os.getpid()}", "w", encoding="utf-8") as file:
        json.dump(seen, file)
    os.rename(f"{seen_file}.{os.getpid()}", seen_file)
    return report


def _server(conn: psycopg.Connection) -> str:
    """Return what tells this server and database from others."""
    info = conn.info
    return f"{info.host}:{info.port}/{info.dbname}"
