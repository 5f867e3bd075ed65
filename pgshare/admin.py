"""A process's one administrative connection: opened when first needed, with settings of its own, marking the run as alive."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from pgshare import mark, probe
from pgshare.deadline import Deadline, NotYet, poll
from pgshare.errors import SettingError
from pgshare.scrub import without_pg_variables

if TYPE_CHECKING:
    import psycopg

ENDED = re.compile("Connection refused|No such file or directory")
SLOT_WAIT = 10.0  # seconds to wait for a free connection slot
# Role and database defaults must not reach our own statements (a 50 ms statement_timeout would fail a DROP).
OWN_SETTINGS = (
    "set statement_timeout = 0; set lock_timeout = 0; set idle_in_transaction_session_timeout = 0; "
    "set default_transaction_read_only = off; set search_path = pg_catalog; set client_min_messages = warning; "
)


class Admin:
    """The administrative connection of one process. Holds the run's advisory lock for as long as it is open."""

    def __init__(self, dsn: str, *, run: str, worker: str, name: str, ours: bool = False) -> None:
        self._dsn, self._run, self._worker, self._name, self._ours = dsn, run, worker, name, ours
        self._conn: psycopg.Connection | None = None

    def adopt(self, conn: psycopg.Connection) -> None:
        """Go on with a connection that already proved the server, instead of opening another."""
        self._conn = self._set_up(conn)

    @property
    def conn(self) -> psycopg.Connection:
        """The open connection; made anew when the server has ended it."""
        if self._conn is None or self._conn.closed:
            self._conn = self._open()
        return self._conn

    @property
    def _application_name(self) -> str:
        return f"pgshare {self._run} {self._worker} admin"

    def _open(self) -> psycopg.Connection:
        # A server that we started is not to be found through the caller's PG* variables.
        with without_pg_variables() if self._ours else contextlib.nullcontext():
            conn = open_slot(self._dsn, name=self._name, application_name=self._application_name, ours=self._ours)
        return self._set_up(conn)

    def _set_up(self, conn: psycopg.Connection) -> psycopg.Connection:
        conn.prepare_threshold = None
        # Shared: every process of the run holds it; others only read pg_locks to see that the run is alive.
        lock = f"select pg_advisory_lock_shared({mark.LOCK_CLASS}, {mark.lock_key(self._run)})"
        conn.execute(f"{OWN_SETTINGS}set idle_session_timeout = 0; set application_name = '{self._application_name}'; {lock}")
        return conn

    def execute(self, statement: bytes) -> psycopg.Cursor:
        """Return the results of ``statement``; tried once more on a new connection when the server had ended ours."""
        import psycopg

        try:
            return self.conn.execute(statement)
        except psycopg.OperationalError:
            if not self.is_broken:
                raise
            return self.conn.execute(statement)

    @property
    def is_broken(self) -> bool:
        """Whether the server or the network has ended the connection that we had."""
        return self._conn is not None and self._conn.closed

    def forget(self) -> None:
        """Drop a connection that turned out to be broken; the next use opens another."""
        if self._conn is not None:
            self._conn.close()
            self._conn = None

    def close(self) -> None:
        """Close it, which releases the run's lock. Idempotent."""
        self.forget()


def open_slot(dsn: str, *, name: str, application_name: str, ours: bool = False) -> psycopg.Connection:
    """Connect, waiting a bounded time for a free slot; SettingError for what no wait changes.

    A server of ours that was there and does not listen any more has ended: that is not waited for.
    """
    import psycopg

    def attempt() -> psycopg.Connection:
        try:
            return probe.connect(dsn, application_name=application_name)
        except psycopg.OperationalError as exc:
            if probe.is_definite(exc) or (ours and ENDED.search(str(exc))):
                raise SettingError(f"{name}: the server refused the connection: {probe.reason(exc)}") from None
            raise NotYet(probe.reason(exc)) from None

    return poll(f"a connection to the server that {name} names", attempt, Deadline.after(SLOT_WAIT))
