"""Who still holds what a test is done with: find exactly those sessions, say who they are, end them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pgshare.deadline import Deadline, NotYet, backoff, poll
from pgshare.errors import NotReadyError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    import psycopg

GRACE = 0.25  # seconds in which the backend of a connection that was just closed goes by itself
CANCEL_GRACE = 0.1  # seconds that a cancelled statement gets to end
QUERY_LENGTH = 120


class ConnectionLeakWarning(UserWarning):
    """A test left connections open; the message names the test and each session."""


class Session(NamedTuple):
    """One server session, as pg_stat_activity shows it."""

    pid: int
    started: datetime
    application_name: str
    state: str
    query: str

    def __str__(self) -> str:
        """Say it in one line."""
        text = " ".join(self.query.split())
        short = text if len(text) <= QUERY_LENGTH else text[: QUERY_LENGTH - 3] + "..."
        return f"pid {self.pid} ({self.application_name or 'no application_name'}), {self.state}, last query: {short or '(none)'}"


class Report:
    """What a teardown found: sessions that were merely left open, and sessions that had to be stopped in what they did."""

    def __init__(self, *, test: str) -> None:
        self.test = test
        self.leaked: list[Session] = []
        self.ended: list[Session] = []

    def add(self, found: Sequence[Session]) -> None:
        """Note sessions that are still there: idle ones were left open, others are stopped in what they do."""
        known = {session.pid for session in (*self.leaked, *self.ended)}
        for session in found:
            if session.pid not in known:
                (self.leaked if session.state == "idle" else self.ended).append(session)

    def __bool__(self) -> bool:
        """Whether there is anything to report."""
        return bool(self.leaked or self.ended)

    def __str__(self) -> str:
        """Say it for the person who wrote the test."""
        lines = [f"{self.test or 'a test'} left {len(self.leaked) + len(self.ended)} connection(s) open; close them in the test"]
        return "\n  ".join([*lines, *self.lines()])

    def lines(self) -> list[str]:
        """Say each session in one line."""
        return [f"left open: {session}" for session in self.leaked] + [f"had to be ended: {session}" for session in self.ended]


COLUMNS = "a.pid, a.backend_start, coalesce(a.application_name, ''), coalesce(a.state, 'unknown'), coalesce(a.query, '')"
# Only clients: a parallel query's workers go with their leader, an autovacuum is nobody's leak and gives way by itself. The type of
# another role's session is hidden from an ordinary role; the server's own processes have no user.
CLIENTS = "a.usesysid is not null and coalesce(a.backend_type, 'client backend') in ('client backend', 'walsender')"
# What the view pg_stat_activity is made of: its joins cost seven times as much, at every test's end.
ALL = f"select {COLUMNS} from pg_stat_get_activity(null) a where a.pid <> pg_backend_pid() and {CLIENTS}"  # noqa: S608  # constants
BY_DATABASE = ALL + " and a.datid = (select oid from pg_database where datname = %(db)s)"  # noqa: S608  # constants
OTHERS = ALL + " and a.datid = (select oid from pg_database where datname = current_database())"  # noqa: S608  # constants
BY_NAME = f"{ALL} and a.application_name = %(app)s"  # the name is one schema's alone
# A lock of the schema: on the schema itself, which whoever makes or drops a table in it holds (the table cannot be seen by others
# yet), or on anything inside.
OF_SCHEMA = """
l.database = (select oid from pg_database where datname = current_database()) and exists (
select from pg_namespace n where n.nspname = %(schema)s and (
l.relation in (select oid from pg_class where relnamespace = n.oid)
or (l.locktype = 'object' and l.classid = 'pg_namespace'::regclass and l.objid = n.oid)
or (l.locktype = 'object' and exists (select from pg_depend d where d.classid = l.classid and d.objid = l.objid
and d.refclassid = 'pg_namespace'::regclass and d.refobjid = n.oid))))
"""
BY_LOCKS = f"{OTHERS} and a.pid in (select l.pid from pg_locks l where l.granted and {OF_SCHEMA})"  # noqa: S608  # constants
# A prepared transaction has no process: its own transaction lock leads to its other locks.
PREPARED = f"""
select distinct x.gid, x.owner from pg_prepared_xacts x
join pg_locks t on t.transactionid = x.transaction and t.pid is null
join pg_locks l on l.virtualtransaction = t.virtualtransaction and l.pid is null
where x.database = current_database() and {OF_SCHEMA}
"""  # noqa: S608  # constants
PREPARED_IN_DATABASE = "select gid, owner from pg_prepared_xacts where database = %(db)s"


def find(conn: psycopg.Connection, query: str, **values: object) -> list[Session]:
    """Return the sessions that ``query`` selects."""
    return rows(conn.execute(query.encode(), values or None))


def rows(cursor: psycopg.Cursor) -> list[Session]:
    """Return the sessions in the last result of ``cursor``."""
    while cursor.nextset():
        pass
    return [make(row) for row in cursor]


def prepared(conn: psycopg.Connection, query: str, **values: object) -> list[str]:
    """Return one line for each prepared transaction that ``query`` selects, with the statement that ends it."""
    found = [(_text(gid), _text(owner)) for gid, owner in conn.execute(query.encode(), values)]
    return [f"prepared transaction {gid!r} of role {owner!r}: ROLLBACK PREPARED {gid!r} ends it" for gid, owner in found]


def make(row: Sequence[object]) -> Session:
    """Return the session of one row of COLUMNS."""
    pid, started, app, state, query = row
    return Session(
        pid=int(str(pid)),
        started=started,  # type: ignore[arg-type]  # a timestamptz column
        application_name=_text(app),
        state=_text(state),
        query=_text(query),
    )


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def still_there(conn: psycopg.Connection, sessions: Sequence[Session]) -> list[Session]:
    """Return the newest state of those of ``sessions`` that still exist: same pid and same start."""
    if not sessions:
        return []
    known = {(session.pid, session.started) for session in sessions}
    found = find(conn, f"{ALL} and a.pid = any(%(pids)s)", pids=[session.pid for session in sessions])
    return [session for session in found if (session.pid, session.started) in known]


def wait_gone(conn: psycopg.Connection, sessions: Sequence[Session], seconds: float, *, busy_only: bool = False) -> list[Session]:
    """Wait until ``sessions`` are gone (or just no longer busy); return those that still are after ``seconds``."""
    left = list(sessions)

    def attempt() -> None:
        nonlocal left
        left = still_there(conn, left)
        waited_for = [session for session in left if session.state == "active"] if busy_only else left
        if waited_for:
            raise NotYet(f"{len(waited_for)} sessions are still there")

    try:
        poll("the end of sessions", attempt, Deadline.after(seconds), pauses=backoff(0.0005))
    except NotReadyError:
        return left
    return left if busy_only else []


def end(conn: psycopg.Connection, sessions: Sequence[Session], seconds: float) -> list[Session]:
    """Cancel, then terminate exactly these sessions; return those that would not go within ``seconds``."""
    if not sessions:
        return []
    busy = [session for session in sessions if session.state == "active"]
    if busy:
        _signal(conn, "pg_cancel_backend", busy)
        wait_gone(conn, busy, CANCEL_GRACE, busy_only=True)
    _signal(conn, "pg_terminate_backend", sessions)
    return wait_gone(conn, sessions, seconds)


def _signal(conn: psycopg.Connection, function: str, sessions: Sequence[Session]) -> None:
    """Call ``function`` on each; whose pid it is now is checked by the start time in the very statement that signals."""
    statement = (
        f"select {function}(a.pid) from pg_stat_activity a "  # noqa: S608  # one of two constants
        "join unnest(%(pids)s::int[], %(starts)s::timestamptz[]) as w(pid, started) "
        "on a.pid = w.pid and a.backend_start = w.started"
    )
    values = {"pids": [session.pid for session in sessions], "starts": [session.started for session in sessions]}
    conn.execute(statement.encode(), values)
