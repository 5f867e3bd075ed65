"""One whole database per test, for what a schema cannot isolate: extensions, public, several schemas, channels, locks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgshare import conninfo, sessions
from pgshare.deadline import Deadline, NotYet, poll
from pgshare.errors import LeftoverError, NotReadyError, SettingError
from pgshare.mark import Mark
from pgshare.schema import Schema
from pgshare.sessions import COLUMNS, Report

if TYPE_CHECKING:
    import psycopg

    from pgshare.admin import Admin
    from pgshare.run import Run

TEARDOWN = 5.0
TEMPLATE = "template1"
TEMPLATE_WAIT = 10.0  # seconds to wait until nobody is connected to the template
IN_DATABASE = f"select {COLUMNS} from pg_stat_activity a where a.pid <> pg_backend_pid() and a.datname = %(db)s"  # noqa: S608  # constants


class Database(Schema):
    """A test's own database. The same surface as a schema's; its sessions start with the server's default path."""


def create(admin: Admin, base_dsn: str, run: Run, test: str, *, version_num: int) -> Database:
    """Return a new empty database. SettingError with the GRANT when the role may not create one."""
    from psycopg import errors, sql

    name = run.name("db")
    parts = conninfo.parse(base_dsn, name="dsn")
    app = f"pgshare {name.removeprefix('pgshare_')}"
    ours = "application_name" not in parts
    # Copying files beats logging pages by a third where nothing is flushed; the choice exists since 15.
    strategy = sql.SQL(" strategy file_copy" if version_num >= 150000 else "")
    statement = sql.SQL("create database {name} template {template}{strategy}").format(
        name=sql.Identifier(name), template=sql.Identifier(TEMPLATE), strategy=strategy
    )

    def attempt() -> None:
        try:
            admin.conn.execute(statement)
        except errors.ObjectInUse as exc:
            raise NotYet(str(exc)) from None

    try:
        poll(f"template database {TEMPLATE}", attempt, Deadline.after(TEMPLATE_WAIT))
    except errors.InsufficientPrivilege as exc:
        raise SettingError(
            f"pg_database needs a role that may create databases: {exc}; run: "
            f"ALTER ROLE {conninfo.quote_ident(parts.get('user', 'you'))} CREATEDB"
        ) from None
    mark = Mark.now(run.id, run.worker, test).text()
    admin.conn.execute(sql.SQL("comment on database {} is {}").format(sql.Identifier(name), sql.Literal(mark)))
    dsn = conninfo.Dsn(conninfo.build({**parts, "dbname": name, **({"application_name": app} if ours else {})}))
    return Database(name=name, dsn=dsn, test=test, application_name=app if ours else None)


def drop(admin: Admin, database: Database, *, timeout: float = TEARDOWN) -> Report:
    """Drop ``database`` within ``timeout`` seconds, its sessions ended first; report the connections that were left open.

    The server waits in steps of 100 ms when a session is still there at DROP, so none is: ours are ended and seen gone before.
    """
    from psycopg import errors, sql

    deadline = Deadline.after(timeout)
    conn = admin.conn
    report = Report(test=database.test)
    statement = sql.SQL("drop database if exists {}").format(sql.Identifier(database.name))

    def attempt() -> None:
        _clear(conn, database, report, deadline)
        try:
            conn.execute(statement)
        except errors.ObjectInUse as exc:
            raise NotYet(str(exc)) from None

    try:
        poll(f"the end of database {database.name}", attempt, deadline)
    except NotReadyError as exc:
        holders = [str(session) for session in sessions.find(conn, IN_DATABASE, db=database.name)]
        raise LeftoverError(
            f"database {database.name} of {database.test} cannot be dropped: {exc.last_seen}; held by", holders=holders
        ) from None
    return report


def _clear(conn: psycopg.Connection, database: Database, report: Report, deadline: Deadline) -> None:
    """End the sessions of the database; what a closed connection leaves for a moment is not reported."""
    rest = sessions.find(conn, IN_DATABASE, db=database.name)
    if rest:
        rest = sessions.wait_gone(conn, rest, sessions.GRACE)
    known = {session.pid for session in (*report.leaked, *report.ended)}
    for session in rest:
        if session.pid not in known:
            (report.leaked if session.state == "idle" else report.ended).append(session)
    if rest:
        sessions.end(conn, rest, min(1.0, deadline.left + 0.1))
