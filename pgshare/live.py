"""One pytest process's use of Postgres: acquire once, remember a failure, make and drop schemas, leave in order.

Everything that plugin.py does not do itself, without importing pytest.
"""

from __future__ import annotations

import os
from operator import methodcaller
from typing import TYPE_CHECKING

from pgshare import child
from pgshare.errors import LeftoverError, NotReadyError, PgshareError, ServerStartError, SettingError, TemplateError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import psycopg

    from pgshare.acquire import Acquired
    from pgshare.database import Database
    from pgshare.run import Run
    from pgshare.schema import Schema, SchemaFactory
    from pgshare.sessions import Report
    from pgshare.settings import Settings
    from pgshare.suite import Postgres

ENDING = 5.0  # seconds that a server of ours which refuses connections gets until its process is gone


class Live:
    """The state of one process of a run. ``is_controller``: it leaves last and ends the run."""

    def __init__(self, settings: Settings, rootdir: str, workerinput: Mapping[str, object] | None, worker: str) -> None:
        if settings.state_dir:
            # Meant from where the run was started: tests may change the folder before the first live one.
            settings = settings._replace(state_dir=os.path.abspath(settings.state_dir))
        self.settings, self.rootdir = settings, rootdir
        self._workerinput, self._worker = workerinput, worker
        self.is_controller = workerinput is None
        self._run: Run | None = None
        self._acquired: Acquired | None = None
        self._error: PgshareError | None = None
        self._factory: SchemaFactory | None = None
        self._is_recovered = False
        self._taken: dict[str, str] = {}
        self._migration_failed = ""
        self._census: frozenset[str] | None = None
        self._migration: Callable[[str], object] | None = None
        self.residue: list[str] = []  # what tests added outside of their schemas
        self.problems: list[str] = []  # what dead runs left and nobody could remove
        self.kept: list[tuple[str, str, bool]] = []  # test, name, whether it is on a server of ours
        self.keep_server = False

    @property
    def run(self) -> Run:
        """This run: the controller's, or the one that it handed to this worker."""
        if self._run is None:
            from pgshare.run import Run

            if self._workerinput is None:
                self._run = Run.new(self.settings.state_dir, checkout=self.rootdir)
            else:
                self._run = Run.from_workerinput(self._workerinput, self._worker)
        return self._run

    def _acquire(self) -> Acquired:
        """Acquire with the garbage collector paused: what is imported meanwhile stays, and collecting among it costs 5 ms."""
        import gc

        was_on = gc.isenabled()
        gc.disable()
        try:
            from pgshare.acquire import acquire

            return acquire(self.run, self.settings, keep_conn=True)
        finally:
            if was_on:
                gc.enable()

    def server(self) -> Postgres:
        """Return the run's Postgres; the first failure is remembered, so that nothing is waited for twice."""
        if self._error is not None:
            raise self._error
        if self._acquired is None:
            try:
                self._acquired = self._acquire()
            except PgshareError as exc:
                self._error = exc
                raise
            if self._acquired.lease is not None:
                from pgshare import scrub

                self._taken = scrub.take_out(os.environ)
        return self._acquired.postgres

    @property
    def postgres(self) -> Postgres | None:
        """The run's Postgres, when this process has it; also after it went away."""
        return self._acquired.postgres if self._acquired is not None else None

    def explain(self, exc: Exception, test: str) -> Exception:
        """Return what to say for ``exc``: one of our errors when the server refused or went away under ``test``, else itself.

        A server that went away is remembered, so that no later test waits for it again.
        """
        import psycopg

        factory = self._factory
        if self._error is not None or factory is None:
            return exc
        if not isinstance(exc, (psycopg.OperationalError, NotReadyError, SettingError)):
            return exc
        try:
            self._refuse_ended(test)
            if factory.admin.is_broken:
                if isinstance(exc, PgshareError):
                    raise exc
                factory.admin.conn.execute("select 1")
        except PgshareError as gone:
            self._error = self._ending(gone, test)
            return self._error
        return exc if isinstance(exc, PgshareError) else SettingError(f"{factory.name}: {' '.join(str(exc).split())}")

    def _ending(self, gone: PgshareError, test: str) -> PgshareError:
        """Return ``gone``, or the server's end: a killed server refuses connections a moment before its process is gone."""
        from pgshare.admin import ENDED

        who = child.identity(self.postgres.pid) if self.postgres is not None and self.postgres.pid else None
        if who is not None and ENDED.search(str(gone)):
            child.wait_gone(who, ENDING)
        try:
            self._refuse_ended(test)
        except ServerStartError as ended:
            return ended
        return gone

    def _refuse_ended(self, test: str) -> None:
        """Raise when a server of ours has ended; its last words are in its log, which goes with the run."""
        ours = self._acquired is not None and self._acquired.lease is not None
        if ours and self.postgres is not None and child.identity(self.postgres.pid) is None:
            raise ServerStartError(
                f"the server of this run ended while tests were running, seen first at {test}",
                log_tail=_last_lines(os.path.join(self.run.folder, "postgres.log")),
            )

    @property
    def run_id(self) -> str:
        """The run's id; blank when nothing needed one."""
        return self._run.id if self._run is not None else ""

    def notes(self) -> dict[str, object]:
        """Return what was found and not yet delivered, as plain data that travels to the controller."""
        return {"kept": self.kept, "residue": self.residue, "problems": self.problems}

    def notes_delivered(self) -> None:
        """Forget them: a report with them was logged. Not every report is: some reruns drop that of a teardown."""
        self.kept, self.residue, self.problems = [], [], []

    def migration(self) -> Callable[[str], object] | None:
        """Return the migration that the project's setting names; it is looked for when it is first run."""
        if self._migration is None and self.settings.migrate is not None:
            from pgshare.migrate import NamedMigration

            self._migration = NamedMigration(self.settings.migrate, self.rootdir, name=self.settings.named("migrate"))
        return self._migration

    def _recover(self) -> None:
        """Clean up after runs that died; what must stay is reported, not fatal.

        Only where a live fixture was really needed, and when the tests are done: looking at other runs takes milliseconds for each
        of them, which the first test would wait for.
        """
        from pgshare.run import state_root

        runs = os.path.join(state_root(self.settings.state_dir, os.environ), "runs")
        if not os.path.isdir(runs) or set(os.listdir(runs)) <= {self.run.id}:
            return  # nobody else's folder is there: not worth importing what looks at them
        from pgshare.runs import recover_dead

        self.problems += recover_dead(state_root(self.settings.state_dir, os.environ), skip=self.run.id)

    @property
    def factory(self) -> SchemaFactory:
        """The maker of this process's schemas."""
        if self._factory is None:
            from pgshare.schema import SchemaFactory

            server = self.server()
            pgoptions = os.environ.get("PGOPTIONS", "")
            self._factory = SchemaFactory(server, self.run, self.settings, pgoptions=pgoptions, conn=self._take_conn())
        return self._factory

    def _take_conn(self) -> psycopg.Connection | None:
        """Return the connection that proved the server, once."""
        if self._acquired is None:
            return None
        conn, self._acquired = self._acquired.conn, self._acquired._replace(conn=None)
        return conn

    def create(self, test: str, migration: Callable[[str], object] | None, *, keep_spare: bool) -> Schema:
        """Return a fresh schema for ``test``, migrated when there is a migration; ``keep_spare`` as SchemaFactory.create has it."""
        __tracebackhide__ = methodcaller("errisinstance", PgshareError)
        self._refuse_lost()
        if self._migration_failed:
            raise TemplateError(f"the migration failed; its error is shown at {self._migration_failed}")
        self._begin_census()
        schema = self.factory.create(test, keep_spare=keep_spare)
        if migration is not None:
            from pgshare.migrate import run_migration

            try:
                run_migration(migration, schema.dsn, test=test)
            except BaseException as exc:  # a skip or Ctrl-C inside the migration must not leave a schema either
                if isinstance(exc, TemplateError):
                    self._migration_failed = test
                self._drop_quietly(schema)
                raise
        return schema

    def _refuse_lost(self) -> None:
        if self._error is not None:
            raise self._error

    def _drop_quietly(self, schema: Schema) -> None:
        import psycopg

        try:
            self.factory.drop(schema)
        except (LeftoverError, psycopg.Error):
            return  # stays marked; the migration's own error is what matters here

    def finish(self, schema: Schema, *, failed: bool) -> Report | None:
        """Drop a test's schema and report its connections, or keep it when asked to."""
        if self._error is not None or self._keeps(schema, failed=failed):
            return None  # with a server that went away there is nothing to drop, and it was said
        report = self.factory.drop(schema)
        self._look_for_residue(schema.test)
        return report

    def _keeps(self, schema: Schema, *, failed: bool) -> bool:
        if self.settings.keep == "never" or (self.settings.keep == "failed" and not failed):
            return False
        from pgshare import keep

        ours = self._acquired is not None and self._acquired.lease is not None
        keep.record(self.run, schema, server_ours=ours)
        if not ours:
            from pgshare import sweep

            sweep.hold(self.factory.admin.conn, schema.name, keep.SERVER_KEPT_FOR)
        self.kept.append((schema.test, schema.name, ours))
        self.keep_server = self.keep_server or ours
        return True

    def create_database(self, test: str) -> Database:
        """Return a fresh whole database for ``test``."""
        from pgshare import database

        self._refuse_lost()
        server = self.server()
        self._begin_census()
        return database.create(self.factory.admin, server.dsn, self.run, test, version_num=server.version_num)

    def finish_database(self, found: Database, *, failed: bool) -> Report | None:
        """Drop a test's database, or keep it when asked to."""
        if self._error is not None or self._keeps(found, failed=failed):
            return None
        from pgshare import database

        report = database.drop(self.factory.admin, found)
        self._look_for_residue(found.test)
        return report

    def _begin_census(self) -> None:
        if self.settings.census and self._census is None:
            self._census = self._take_census()

    def _take_census(self) -> frozenset[str]:
        from pgshare import census

        return census.take(self.factory.admin.conn)

    def _look_for_residue(self, test: str) -> None:
        if self._census is None:
            return
        from pgshare import census

        now = self._take_census()
        new = census.added(self._census, now)
        self._census = now
        if new:
            self.residue.append(f"{test}: {', '.join(new)}")

    def close(self) -> None:
        """Give back what this process holds, without ending the run. Idempotent."""
        if self._acquired is not None and not self._is_recovered:
            self._is_recovered = True
            self._recover()
        if self._factory is not None:
            self._sweep_external()
            self._factory.close()
            self._factory = None
        conn = self._take_conn()
        if conn is not None:
            conn.close()
        if self._taken:
            from pgshare import scrub

            scrub.put_back(os.environ, self._taken)
            self._taken = {}
        if self._acquired is not None and self._acquired.lease is not None and not self.is_controller:
            self._acquired.lease.close()

    def _sweep_external(self) -> None:
        """On a server that others use too: one process of the run clears what dead runs left there."""
        import psycopg

        ours = self._acquired is None or self._acquired.lease is not None
        if ours or self._error is not None or self._worker not in ("main", "gw0") or self._factory is None:
            return
        from pgshare.run import cache_folder
        from pgshare.sweep import sweep_seen_before

        seen = os.path.join(cache_folder(self.settings.state_dir, os.environ), "seen-dead.json")
        try:
            report = sweep_seen_before(self._factory.admin.conn, seen)
        except (psycopg.Error, PgshareError):
            return  # the server is going away or refuses: the next run looks again
        self.problems += [f"{item.kind} {item.name} on {self._factory.name}: {why}" for item, why in report.kept]

    def leave(self) -> list[str]:
        """End the run as its controller: everything that is ours stops; return what could not be cleaned. Idempotent."""
        self.close()
        if not self.is_controller or self._run is None:
            return []
        from pgshare import keep, lease

        held = self._acquired.lease if self._acquired is not None else None
        self._acquired = None
        run, self._run = self._run, None
        if held is None and not os.path.exists(run.keeper_socket):
            return []  # no worker needed a server of ours either
        try:
            found = held or lease.connect(run)
            if found is not None:
                return found.leave(keep=keep.SERVER_KEPT_FOR if self.keep_server else 0.0)
        except (PgshareError, OSError) as exc:
            return [str(exc)]
        return []


def _last_lines(path: str, count: int = 5) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return "".join(file.readlines()[-count:])
    except OSError:
        return ""
