"""One fresh schema per test, selected by search_path in the DSN itself; gone after the test whatever the test did."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from pgshare import conninfo, probe, sessions
from pgshare.admin import SLOT_WAIT, Admin
from pgshare.deadline import Deadline, NotYet, poll
from pgshare.errors import LeftoverError, NotReadyError, SettingError
from pgshare.mark import Mark
from pgshare.sessions import ConnectionLeakWarning, Report, Session

if TYPE_CHECKING:
    import psycopg

    from pgshare.run import Run
    from pgshare.settings import Settings
    from pgshare.suite import Postgres

TEARDOWN = 5.0  # seconds that a teardown may take before it gives up and says who is in the way
LOCK_WAIT = 0.5  # seconds that one DROP waits for locks before the holders are looked at
QUICK_LOCK_WAIT = 0.05
AUTOVACUUM_WAIT = 2.0  # longer than deadlock_timeout (1 s)
CHANNEL_LIMIT = 63
USERS = (
    "select coalesce(nullif(application_name, ''), '(no application_name)') || ' x' || count(*) from pg_stat_activity "
    "where backend_type = 'client backend' group by application_name order by count(*) desc, 1 limit 10"
)


class Schema:
    """A test's own schema. ``dsn`` starts every session inside it."""

    def __init__(self, *, name: str, dsn: str, test: str = "", application_name: str | None = None) -> None:
        self.name, self.dsn, self.test = name, dsn, test
        self.application_name = application_name

    def __repr__(self) -> str:
        """Show the name and the test, not the DSN, which holds a password."""
        return f"{type(self).__name__}({self.name!r}, test={self.test!r})"

    @property
    def parts(self) -> dict[str, str]:
        """The DSN's keys."""
        return conninfo.parse(self.dsn, name="the schema's DSN")

    def connect(self, **options: object) -> psycopg.Connection:
        """Return a new psycopg connection in this schema; ``options`` as psycopg.connect takes them. The caller closes it."""
        import psycopg

        return psycopg.connect(self.dsn, **options)  # type: ignore[arg-type]  # psycopg's own keywords

    def env(self) -> dict[str, str]:
        """Return a copy of the environment that brings psql and other libpq programs into this schema: for ``subprocess``."""
        import os

        from pgshare import drivers

        return drivers.env(self.parts, os.environ)

    def url(self, driver: str = "libpq") -> str:
        """Return a URL for ``driver``: libpq, asyncpg, sqlalchemy, sqlalchemy+psycopg, sqlalchemy+asyncpg."""
        from pgshare import drivers

        return drivers.url(self.parts, driver)

    def engine_args(self, driver: str = "sqlalchemy+psycopg") -> dict[str, object]:
        """Return keyword arguments for SQLAlchemy's ``create_engine`` or ``create_async_engine``."""
        from pgshare import drivers

        return drivers.engine_args(self.parts, driver)

    def django(self) -> dict[str, object]:
        """Return an entry for Django's DATABASES that uses this schema and makes no test database."""
        from pgshare import drivers

        return drivers.django(self.parts)

    def channel(self, name: str) -> str:
        """Return a LISTEN/NOTIFY channel of this test: channels are per database, not per schema."""
        full = f"{self.name}_{name}"
        if len(full.encode()) <= CHANNEL_LIMIT:
            return full
        import hashlib

        return f"{self.name}_{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}"[-CHANNEL_LIMIT:]


class SchemaFactory:
    """Makes and drops the schemas of one process."""

    def __init__(
        self,
        postgres: Postgres,
        run: Run,
        settings: Settings,
        *,
        pgoptions: str = "",
        conn: psycopg.Connection | None = None,
    ) -> None:
        self._postgres, self._run, self._settings, self._pgoptions = postgres, run, settings, pgoptions
        self._ours = postgres.origin != "external"
        self.name = "the server of this run" if self._ours else settings.named("dsn")
        self.admin = Admin(postgres.dsn, run=run.id, worker=run.worker, name=self.name, ours=self._ours)
        if conn is not None:
            self.admin.adopt(conn)
        # A name of the user's own stays; then sessions of a schema are known by their locks alone.
        self._names_sessions = "application_name" not in conninfo.parse(postgres.dsn, name=self.name)
        self._proved: set[tuple[str, ...]] = set()
        self._spare: tuple[str, psycopg.Connection] | None = None

    def create(self, test: str, *, keep_spare: bool = False) -> Schema:
        """Return a new schema for ``test``: one round trip, and on the first of its kind a proof that its DSN isolates.

        ``keep_spare``: the connection of that proof is kept for ``connect``, which the caller promises to call.

        SettingError for a role without CREATE, a pooler in between, or a DSN that sets a search_path itself.
        """
        from psycopg import errors

        schema = self._describe(self._run.name(), test)
        try:
            self.admin.execute(self._creation(schema))
        except errors.InsufficientPrivilege as exc:
            raise SettingError(f"{self.name}: the role may not create schemas any more: {exc}") from None
        try:
            self._prove(schema, keep_spare=keep_spare)
        except BaseException:
            with contextlib.suppress(LeftoverError):
                self.drop(schema)
            raise
        return schema

    def _describe(self, name: str, test: str) -> Schema:
        app = f"pgshare {name.removeprefix('pgshare_')}"
        dsn = conninfo.with_search_path(
            self._postgres.dsn,
            (name, *self._settings.schemas),
            name=self.name,
            pgoptions="" if self._ours else self._pgoptions,
            application_name=app,
        )
        return Schema(name=name, dsn=dsn, test=test, application_name=app if self._names_sessions else None)

    def _creation(self, schema: Schema) -> bytes:
        from psycopg import sql

        # One simple-query message is one transaction: schema and mark come into being together.
        statement = sql.SQL("create schema {name}; comment on schema {name} is {mark}").format(
            name=sql.Identifier(schema.name),
            mark=sql.Literal(Mark.now(self._run.id, self._run.worker, schema.test).text()),
        )
        return statement.as_bytes(self.admin.conn)

    def _prove(self, schema: Schema, *, keep_spare: bool) -> None:
        """Prove that the DSN isolates, once for each shape; on a server that we started nothing lies in between to drop it."""
        shape = tuple(sorted(schema.parts))
        if shape in self._proved:
            return
        if self._settings.schemas:
            self._check_extra()
        if not self._ours:
            conn = probe.prove_isolation(schema.dsn, schema.name, name=self.name)
            if keep_spare:
                self._spare = (schema.name, conn)
            else:
                conn.close()
        self._proved.add(shape)

    def _check_extra(self) -> None:
        """Make sure that the user's extra schemas exist: a missing one would be skipped without a word."""
        setting = self._settings.named("schemas")
        for extra in self._settings.schemas:
            if self.admin.conn.execute("select 1 from pg_namespace where nspname = %s", [extra]).fetchone() is None:
                raise SettingError(
                    f"{setting} names schema {extra!r}, which does not exist in this database; create it, or leave it out"
                )
        if "public" in self._settings.schemas:
            found = self.admin.conn.execute(
                "select string_agg(relname, ', ' order by relname) from (select relname from pg_class "
                "where relnamespace = 'public'::regnamespace and relkind in ('r', 'p') order by relname limit 5) t"
            ).fetchone()
            if found and found[0]:
                import warnings

                warnings.warn(
                    f"{setting} puts public on the path, and it has tables ({found[0]}): tests may read them instead of their own",
                    stacklevel=2,
                )

    def connect(self, schema: Schema, *, wait: float = SLOT_WAIT) -> psycopg.Connection:
        """Connect for a test, waiting up to ``wait`` seconds for a free slot; SettingError then says who holds them."""
        import psycopg

        if self._spare is not None and self._spare[0] == schema.name:
            (_, spare), self._spare = self._spare, None
            return spare

        def attempt() -> psycopg.Connection:
            try:
                return schema.connect()
            except psycopg.OperationalError as exc:
                if probe.PASSING.search(str(exc)) is None:
                    raise
                raise NotYet(probe.reason(exc)) from None

        try:
            return poll("a free connection slot", attempt, Deadline.after(wait))
        except NotReadyError as exc:
            users = [str(row[0]) for row in self.admin.conn.execute(USERS)]
            limit = self.admin.conn.execute("show max_connections").fetchone()
            raise SettingError(
                f"{self.name} has no free connection slot after {exc.waited:.1f}s; "
                f"max_connections is {limit and limit[0]}, used by: "
                f"{', '.join(users)}; use fewer workers or pools, or raise max_connections"
            ) from None

    def drop(self, schema: Schema, *, timeout: float = TEARDOWN) -> Report:
        """Drop ``schema`` within ``timeout`` seconds and report the connections that the test left.

        Only sessions of this very schema are ended. LeftoverError names who is in the way when it could not be dropped; the mark
        inside the database keeps it known.
        """
        self._close_spare()
        report = Report(test=schema.test)
        deadline = Deadline.after(timeout)
        rest = self._try_drop(schema, QUICK_LOCK_WAIT)
        if rest is None:
            # Backends of connections that were just closed go by themselves.
            sessions.wait_gone(self.admin.conn, self._holders(schema), sessions.GRACE)
        while rest is None:
            rest = self._force(schema, report, deadline)
        if rest:
            self._end_the_rest(rest, report, deadline)
        return report

    def _try_drop(self, schema: Schema, lock_wait: float) -> list[Session] | None:
        """Drop the schema in one round trip and return its sessions that are still there; None when somebody is in the way."""
        from psycopg import errors, sql

        text = f"set local lock_timeout = '{round(lock_wait * 1000)}ms'; drop schema if exists \"{schema.name}\" cascade"
        if schema.application_name is not None:
            app = sql.Literal(schema.application_name).as_string(self.admin.conn)
            text += f"; {sessions.BY_NAME % {'app': app}}"
        try:
            cursor = self.admin.execute(text.encode())
        except (errors.LockNotAvailable, errors.DeadlockDetected, errors.ObjectInUse):
            return None
        return sessions.rows(cursor) if schema.application_name is not None else []

    def _force(self, schema: Schema, report: Report, deadline: Deadline) -> list[Session] | None:
        """End the sessions in the way and try once more; the same results."""
        from psycopg import errors

        holders = self._holders(schema)
        report.add(holders)
        try:
            sessions.end(self.admin.conn, holders, min(1.0, deadline.left))
        except errors.InsufficientPrivilege as exc:
            raise self._leftover(schema, holders, f"the role may not end them: {exc}") from None
        self._refuse_prepared(schema, report)
        # Ended sessions may reconnect at once: DROP queues for its locks before they are back, and new ones queue behind it. Where
        # no client is in the way it is an autovacuum, which gives way to a lock that waits longer than deadlock_timeout.
        rest = self._try_drop(schema, LOCK_WAIT if holders else AUTOVACUUM_WAIT)
        if rest is None and deadline.expired:
            raise self._leftover(schema, self._holders(schema), f"still locked after {deadline.waited:.1f}s")
        return rest

    def _holders(self, schema: Schema) -> list[Session]:
        conn = self.admin.conn
        found = {session.pid: session for session in sessions.find(conn, sessions.BY_LOCKS, schema=schema.name)}
        if schema.application_name is not None:
            named = sessions.find(conn, sessions.BY_NAME, app=schema.application_name)
            found |= {session.pid: session for session in named}
        return list(found.values())

    def _refuse_prepared(self, schema: Schema, report: Report) -> None:
        named = sessions.prepared(self.admin.conn, sessions.PREPARED, schema=schema.name)
        if named:
            raise LeftoverError(
                f"schema {schema.name} of {schema.test} cannot be dropped and stays marked for 'harness pg sweep'",
                holders=[*named, *report.lines()],
            )

    def _leftover(self, schema: Schema, holders: list[Session], reason: str) -> LeftoverError:
        return LeftoverError(
            f"schema {schema.name} of {schema.test} cannot be dropped ({reason}) and stays marked for 'harness pg sweep'; held by",
            holders=[str(session) for session in holders] or ["nobody whom this role can see"],
        )

    def _end_the_rest(self, rest: list[Session], report: Report, deadline: Deadline) -> None:
        """Report and end what is still connected: the schema is gone, so nothing useful can come of it."""
        from psycopg import errors

        rest = sessions.wait_gone(self.admin.conn, rest, sessions.GRACE)
        report.add(rest)
        with contextlib.suppress(errors.InsufficientPrivilege):
            sessions.end(self.admin.conn, rest, min(1.0, deadline.left + 0.1))

    def close(self) -> None:
        """Close the administrative connection. Idempotent."""
        self._close_spare()
        self.admin.close()

    def _close_spare(self) -> None:
        if self._spare is not None:
            self._spare[1].close()
            self._spare = None


def refuse_mixed(stack_dsn: str, schema: Schema) -> None:
    """Raise SettingError when a test combines a stack with a schema of another server session: H-18.

    The stack's server opened its store once, on the DSN it was started with. A schema chosen by search_path in another DSN is
    invisible to it: the test would write in one place and the server would read in another, and nothing would fail.
    """
    if conninfo.parse(stack_dsn, name="the stack's DSN") != schema.parts:
        raise SettingError(
            f"this test uses a stack and schema {schema.name}: the stack's server works on the DSN it was started with and "
            "never sees that schema; use stack.dsn for store assertions, or an own stack on the schema"
        )


__all__ = ["ConnectionLeakWarning", "Report", "Schema", "SchemaFactory", "Session", "refuse_mixed"]
