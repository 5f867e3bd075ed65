"""One whole database per test, for what a schema cannot isolate: extensions, public, several schemas, channels, locks."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from pgshare import conninfo, sessions
from pgshare.deadline import Deadline, NotYet, poll
from pgshare.errors import LeftoverError, NotReadyError, SettingError
from pgshare.mark import Mark
from pgshare.schema import Schema
from pgshare.sessions import BY_DATABASE, Report

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

    from pgshare.admin import Admin
    from pgshare.run import Run

TEARDOWN = 5.0
TEMPLATE = "template1"
TEMPLATE_WAIT = 10.0  # seconds to wait until nobody is connected to the template


class Database(Schema):
    """A test's own database. The same surface as a schema's; its sessions start with the server's default path."""


def create(admin: Admin, base_dsn: str, run: Run, test: str, *, version_num: int) -> Database:
    """Return a new empty database. SettingError with the GRANT when the role may not create one."""
    import psycopg
    from psycopg import sql

    name = run.name("db")
    parts = conninfo.parse(base_dsn, name="dsn")
    app = f"pgshare {name.removeprefix('pgshare_')}"
    ours = "application_name" not in parts
    ident, mark = sql.Identifier(name), sql.Literal(Mark.now(run.id, run.worker, test).text())
    # CREATE DATABASE cannot be in one transaction with its mark, and the server goes on with it when its client is killed: until
    # the database is marked, a schema of its name stands in for it, by which a sweep finds it.
    admin.execute(sql.SQL("create schema {0}; comment on schema {0} is {1}").format(ident, mark).as_bytes(admin.conn))
    try:
        _copy_template(admin, name, parts.get("user", "you"), version_num)
    except BaseException:
        with contextlib.suppress(psycopg.Error):
            admin.conn.execute(sql.SQL("drop schema {}").format(ident))
        raise
    done = sql.SQL("comment on database {0} is {1}; drop schema {0}").format(ident, mark)
    admin.conn.execute(done.as_bytes(admin.conn))
    dsn = conninfo.Dsn(conninfo.build({**parts, "dbname": name, **({"application_name": app} if ours else {})}))
    return Database(name=name, dsn=dsn, test=test, application_name=app if ours else None)


def _copy_template(admin: Admin, name: str, user: str, version_num: int) -> None:
    """Make database ``name`` from the template, waiting a bounded time until nobody is connected to that."""
    from psycopg import errors, sql

    # Copying files beats logging pages by a third where nothing is flushed; the choice exists since 15.
    strategy = sql.SQL(" strategy file_copy" if version_num >= 150000 else "")
    statement = sql.SQL("create database {name} template {template}{strategy}").format(
        name=sql.Identifier(name), template=sql.Identifier(TEMPLATE), strategy=strategy
    )

    def attempt() -> None:
        try:
            admin.conn.execute(statement)
        except errors.ObjectInUse as exc:
            there = ", ".join(str(session) for session in sessions.find(admin.conn, BY_DATABASE, db=TEMPLATE))
            raise NotYet(f"{exc.diag.message_primary}: {there or 'they are gone by now'}") from None

    try:
        poll(f"template database {TEMPLATE}", attempt, Deadline.after(TEMPLATE_WAIT))
    except errors.InsufficientPrivilege as exc:
        raise SettingError(
            f"pg_database needs a role that may create databases: {exc}; run: ALTER ROLE {conninfo.quote_ident(user)} CREATEDB"
        ) from None


def drop(admin: Admin, database: Database, *, timeout: float = TEARDOWN) -> Report:
    """Drop ``database`` within ``timeout`` seconds, its sessions ended first; report the connections that were left open.

    The server waits in steps of 100 ms when a session is still there at DROP, so none is: ours are ended and seen gone before.
    """
    from psycopg import errors, sql

    deadline = Deadline.after(timeout)
    report = Report(test=database.test)
    statement = sql.SQL("drop database if exists {}").format(sql.Identifier(database.name)).as_bytes(admin.conn)

    def attempt() -> None:
        _clear(admin.conn, database, report, deadline)
        try:
            admin.conn.execute(statement)
        except errors.ObjectInUse as exc:
            raise NotYet(str(exc)) from None

    admin.execute(b"select 1")  # whoever has ended the administrative session did so before this: nothing below is half done
    try:
        poll(f"the end of database {database.name}", attempt, deadline)
    except NotReadyError as exc:
        raise _leftover(database, exc.last_seen, sessions.find(admin.conn, BY_DATABASE, db=database.name)) from None
    return report


def _leftover(database: Database, reason: str, holders: Sequence[object]) -> LeftoverError:
    what = f"database {database.name} of {database.test}"
    return LeftoverError(
        f"{what} cannot be dropped ({reason}) and stays marked for 'harness pg sweep'; held by",
        holders=[str(holder) for holder in holders] or ["nobody whom this role can see"],
    )


def _clear(conn: psycopg.Connection, database: Database, report: Report, deadline: Deadline) -> None:
    """End the sessions of the database; what a closed connection leaves for a moment is not reported."""
    from psycopg import errors, sql

    rest = sessions.find(conn, BY_DATABASE, db=database.name)
    if rest:
        rest = sessions.wait_gone(conn, rest, sessions.GRACE)
    report.add(rest)
    prepared = sessions.prepared(conn, sessions.PREPARED_IN_DATABASE, db=database.name)
    if not rest and not prepared:
        return
    if not prepared:
        # Whoever reconnects at once stays outside; with a prepared transaction somebody has to get in to end it.
        conn.execute(sql.SQL("alter database {} allow_connections false").format(sql.Identifier(database.name)))
        rest = sessions.find(conn, BY_DATABASE, db=database.name)
        report.add(rest)
    try:
        sessions.end(conn, rest, min(1.0, deadline.left + 0.1))
    except errors.InsufficientPrivilege as exc:
        raise _leftover(database, f"the role may not end them: {exc}", rest) from None
    if prepared:
        raise _leftover(database, "it holds prepared transactions", [*prepared, *report.lines()])
