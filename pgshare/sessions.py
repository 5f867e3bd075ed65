"""Who still holds what a test is done with: find exactly those sessions, say who they are, end them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pgshare.deadline import Deadline, NotYet, poll
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

    def __bool__(self) -> bool:
        """Whether there is anything to report."""
        return bool(self.leaked or self.ended)

    def __str__(self) -> str:
        """Say it for the person who wrote the test."""
        lines = [f"{self.test or 'a test'} left {len(self.leaked) + len(self.ended)} connection(s) open; close them in the test"]
        lines += [f"  left open: {session}" for session in self.leaked]
        lines += [f"  had to be ended: {session}" for session in self.ended]
        return "\n".join(lines)


COLUMNS = "a.pid, a.backend_start, a.application_name, coalesce(a.state, 'unknown'), coalesce(a.query, '')"
ALL = f"select {COLUMNS} from pg_stat_activity a where a.pid <> pg_backend_pid()"  # noqa: S608  # constants
OTHERS = f"{ALL} and a.datname = current_database()"
BY_NAME = f"{OTHERS} and a.application_name = %(app)s"
# A session of this schema by what it holds: locks on the schema's own relations.
IN_SCHEMA = """
a.pid in (select l.pid from pg_locks l join pg_class c on c.oid = l.relation
join pg_database d on d.oid = l.database and d.datname = current_database()
join pg_namespace n on n.oid = c.relnamespace where n.nspname = %(schema)s and l.granted and l.pid is not null)
"""
BY_LOCKS = f"{OTHERS} and {IN_SCHEMA}"
# A prepared transaction has no process: its own transaction lock leads to its other locks.
PREPARED = """
select distinct x.gid, x.owner from pg_prepared_xacts x
join pg_locks t on t.transactionid = x.transaction and t.pid is null
join pg_locks l on l.virtualtransaction = t.virtualtransaction and l.pid is null
join pg_class c on c.oid = l.relation join pg_namespace n on n.oid = c.relnamespace
where x.database = current_database() and n.nspname = %(schema)s
"""


def find(conn: psycopg.Connection, query: str, **values: object) -> list[Session]:
    """Return the sessions that ``query`` selects."""
    return [make(row) for row in conn.execute(query.encode(), values or None)]


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
    rows = find(conn, f"{ALL} and a.pid = any(%(pids)s)", pids=[session.pid for session in sessions])
    return [session for session in rows if (session.pid, session.started) in known]


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
        poll("the end of sessions", attempt, Deadline.after(seconds))
    except NotReadyError:
        return left
    return left if busy_only else []


def end(conn: psycopg.Connection, sessions: Sequence[Session], seconds: float) -> list[Session]:
    """Cancel, then terminate exactly these sessions; return those that would not go within ``seconds``."""
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
