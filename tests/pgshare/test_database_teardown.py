"""A whole database goes away in time, whatever the test left in it, and never without a mark."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time

import psycopg
import pytest
from projects import until

from pgshare import conninfo, database, sweep
from pgshare.errors import LeftoverError, NotReadyError
from pgshare.run import Run
from pgshare.schema import SchemaFactory
from pgshare.settings import Settings

MAKER = (
    "import sys; from pgshare import database; from pgshare.acquire import acquire; from pgshare.run import Run\n"
    "from pgshare.schema import SchemaFactory; from pgshare.settings import Settings\n"
    "run = Run.new(); s = Settings(dsn=sys.argv[1]); pg = acquire(run, s).postgres; f = SchemaFactory(pg, run, s)\n"
    "print(run.id, f.admin.conn.info.backend_pid, flush=True)\n"
    "database.create(f.admin, pg.dsn, run, 't::killed', version_num=pg.version_num)\n"
)


@pytest.fixture
def made(own_server):
    run = Run.new()
    factory = SchemaFactory(own_server, run, Settings())
    yield lambda test="t": database.create(factory.admin, own_server.dsn, run, test, version_num=own_server.version_num), factory
    factory.close()


def is_gone(factory, found):
    return factory.admin.conn.execute("select 1 from pg_database where datname = %s", [found.name]).fetchone() is None


def test_a_client_that_reconnects_at_once_does_not_stop_the_drop(made):
    create, factory = made
    found = create()
    stop, connected = threading.Event(), threading.Event()

    def hold():
        while not stop.is_set():
            with contextlib.suppress(psycopg.Error), found.connect(autocommit=True) as conn:
                connected.set()
                conn.execute("select pg_sleep(600)")

    threads = [threading.Thread(target=hold) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        assert connected.wait(20)
        began = time.monotonic()
        report = database.drop(factory.admin, found)
        assert time.monotonic() - began < 3  # the limit is the subject: nobody can come back in
    finally:
        stop.set()
        factory.admin.conn.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [found.name])
        for thread in threads:
            thread.join(20)
    assert report.ended
    assert is_gone(factory, found)


def test_a_prepared_transaction_in_it_is_named_at_once(made):
    create, factory = made
    found = create("t::two_phase")
    with found.connect(autocommit=True) as conn:
        conn.execute("create table p (i int); begin; insert into p values (1); prepare transaction 'in a database'")
    began = time.monotonic()
    with pytest.raises(LeftoverError) as caught:
        database.drop(factory.admin, found)
    assert time.monotonic() - began < 3  # the limit is the subject: no wait changes it
    assert str(caught.value) == (
        f"database {found.name} of t::two_phase cannot be dropped (it holds prepared transactions) and stays marked for "
        "'harness pg sweep'; held by\n"
        "  prepared transaction 'in a database' of role 'postgres': ROLLBACK PREPARED 'in a database' ends it"
    )
    with found.connect(autocommit=True) as conn:
        conn.execute("rollback prepared 'in a database'")
    database.drop(factory.admin, found)
    assert is_gone(factory, found)


def test_an_administrative_session_that_was_ended_is_replaced(made, own_server):
    create, factory = made
    with psycopg.connect(own_server.dsn, autocommit=True) as other:
        other.execute("select pg_terminate_backend(%s)", [factory.admin.conn.info.backend_pid])
        found = create()
        other.execute("select pg_terminate_backend(%s)", [factory.admin.conn.info.backend_pid])
        database.drop(factory.admin, found)
    assert is_gone(factory, found)


def test_a_maker_that_is_killed_while_the_server_copies_leaves_a_marked_database(own_server):
    """The server goes on with CREATE DATABASE when its client is gone; somebody on the template holds it up until then."""
    template = conninfo.build({**conninfo.parse(own_server.dsn, name="x"), "dbname": "template1"})
    with psycopg.connect(own_server.dsn, autocommit=True) as admin:
        with (
            psycopg.connect(template),
            subprocess.Popen([sys.executable, "-c", MAKER, own_server.dsn], stdout=subprocess.PIPE, text=True) as process,
        ):
            run, pid = process.stdout.readline().split()
            until(
                "the server's wait for the template",
                lambda: admin.execute(
                    "select 1 from pg_stat_activity where pid = %s and query ilike 'create database%%' and state = 'active'", [pid]
                ).fetchone(),
            )
            process.kill()
            process.wait()
        until(
            "the end of its session", lambda: not admin.execute("select 1 from pg_stat_activity where pid = %s", [pid]).fetchone()
        )
        made = admin.execute("select datname from pg_database where datname like %s", [f"pgshare_{run}%"]).fetchall()
        assert len(made) == 1
        report = sweep.sweep(own_server.dsn, apart=0.0, min_age=0.0, only_run=run)
        assert [(item.kind, item.name) for item in report.dropped] == [("database", made[0][0]), ("schema", made[0][0])]
        assert not sweep.sweep(own_server.dsn, apart=0.0, min_age=0.0, only_run=run).dropped


def test_who_is_on_the_template_is_named(made, own_server, monkeypatch):
    create, _ = made
    monkeypatch.setattr(database, "TEMPLATE_WAIT", 0.2)
    template = conninfo.build({**conninfo.parse(own_server.dsn, name="x"), "dbname": "template1", "application_name": "a viewer"})
    with psycopg.connect(template) as conn, pytest.raises(NotReadyError, match=f"pid {conn.info.backend_pid} .a viewer."):
        create()


def test_what_the_server_does_in_it_by_itself_is_nobodys_leak(made):
    create, factory = made
    found = create()
    conn = factory.admin.conn
    conn.execute("alter system set autovacuum_naptime = '1s'")
    conn.execute("select pg_reload_conf()")
    try:
        with found.connect(autocommit=True) as work:
            work.execute(
                "create table big (i int, t text) with (autovacuum_vacuum_threshold = 1, autovacuum_analyze_threshold = 1, "
                "autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1)"
            )
            work.execute(
                "insert into big select i, repeat('x', 500) from generate_series(1, 100000) i; delete from big where i % 2 = 0"
            )
        until(
            "an autovacuum of the table",
            lambda: conn.execute(
                "select 1 from pg_stat_activity where backend_type = 'autovacuum worker' and datname = %s and query like '%%big%%'",
                [found.name],
            ).fetchone(),
        )
        report = database.drop(factory.admin, found)
        assert not report, str(report)
        assert is_gone(factory, found)
    finally:
        conn.execute("alter system reset autovacuum_naptime")
        conn.execute("select pg_reload_conf()")
