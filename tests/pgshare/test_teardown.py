from __future__ import annotations

import contextlib
import threading
import time

import psycopg
import pytest

from pgshare import conninfo
from pgshare.errors import LeftoverError
from pgshare.run import Run
from pgshare.schema import SchemaFactory
from pgshare.settings import Settings


@pytest.fixture
def factory(own_server):
    made = SchemaFactory(own_server, Run.new(), Settings())
    yield made
    made.close()


def gone(factory, schema):
    return factory.admin.conn.execute("select 1 from pg_namespace where nspname = %s", [schema.name]).fetchone() is None


def made_table(factory, test="t::leaky", tables=("p",)):
    schema = factory.create(test)
    with schema.connect() as conn:
        for table in tables:
            conn.execute(f"create table {table} (i int)")
    return schema


def test_a_leaked_transaction_is_ended_and_named(factory):
    schema = made_table(factory)
    conn = schema.connect()
    conn.execute("select * from p")
    pid = conn.info.backend_pid
    report = factory.drop(schema)
    assert gone(factory, schema)
    assert [session.pid for session in report.ended] == [pid]
    text = str(report)
    assert text.startswith("t::leaky left 1 connection(s) open; close them in the test\n  had to be ended: pid ")
    assert f"({schema.application_name}), idle in transaction, last query: select * from p" in text
    with pytest.raises(psycopg.OperationalError):
        conn.execute("select 1")
    conn.close()


def test_an_idle_connection_is_reported_as_left_open(factory):
    schema = made_table(factory)
    conn = schema.connect(autocommit=True)
    conn.execute("select 7")
    report = factory.drop(schema)
    assert [session.state for session in report.leaked] == ["idle"]
    assert report.ended == []
    assert "left open: pid" in str(report)
    conn.close()


def test_a_connection_closed_just_before_is_no_leak(factory):
    for _ in range(30):
        schema = factory.create("t")
        conn = schema.connect()
        conn.execute("select 1")
        conn.close()
        assert not factory.drop(schema)


def test_a_running_query_is_cancelled_then_ended(factory):
    schema = made_table(factory)
    conn = schema.connect(autocommit=True)
    done = threading.Event()

    def query():
        with pytest.raises(psycopg.Error):
            conn.execute("select pg_sleep(600) from p right join (select 1) x on true")
        done.set()

    thread = threading.Thread(target=query)
    thread.start()
    wait_active(factory, schema)
    began = time.monotonic()
    report = factory.drop(schema)
    assert time.monotonic() - began < 6  # the limit is the subject: a teardown is bounded
    assert gone(factory, schema)
    assert "pg_sleep(600)" in str(report)
    assert done.wait(20)
    thread.join(20)
    conn.close()


def wait_active(factory, schema):
    from projects import until

    until(
        "a running query",
        lambda: factory.admin.conn.execute(
            "select 1 from pg_stat_activity where application_name = %s and state = 'active'", [schema.application_name]
        ).fetchone(),
    )


def test_a_thread_that_reads_in_the_other_order_does_not_stop_the_drop(factory):
    schema = made_table(factory, tables=("a", "b"))
    stop = threading.Event()

    def read():
        while not stop.is_set():
            try:
                with schema.connect() as conn:
                    conn.execute("select * from b")
                    conn.execute("select * from a")
            except psycopg.Error:
                continue

    thread = threading.Thread(target=read)
    thread.start()
    try:
        factory.drop(schema)
    finally:
        stop.set()
        thread.join(20)
    assert gone(factory, schema)


def test_a_thread_that_reconnects_at_once_does_not_stop_the_drop(factory):
    schema = made_table(factory)
    stop, holding = threading.Event(), threading.Event()

    def hold():
        while not stop.is_set():
            with contextlib.suppress(psycopg.Error), schema.connect() as conn:
                conn.execute("select * from p")
                holding.set()
                # Stays in its transaction until somebody ends the session.
                conn.execute("select pg_sleep(600)")

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert holding.wait(20)
        factory.drop(schema)
    finally:
        stop.set()
        for _ in range(3):
            factory.admin.conn.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = %s", [schema.application_name]
            )
        thread.join(20)
    assert gone(factory, schema)
    assert not thread.is_alive()


def test_a_prepared_transaction_is_named_and_left_to_the_user(factory):
    schema = made_table(factory, test="t::two_phase")
    with schema.connect(autocommit=True) as conn:
        conn.execute("begin; insert into p values (1); prepare transaction 'gid x'")
    with pytest.raises(LeftoverError) as caught:
        factory.drop(schema)
    assert str(caught.value) == (
        f"schema {schema.name} of t::two_phase cannot be dropped and stays marked for 'harness pg sweep'\n"
        "  prepared transaction 'gid x' of role 'postgres': ROLLBACK PREPARED 'gid x' ends it"
    )
    assert not gone(factory, schema)
    after = factory.create("t::next")  # the next test runs
    factory.drop(after)
    factory.admin.conn.execute("rollback prepared 'gid x'")
    factory.drop(schema)


def test_sessions_of_other_schemas_are_never_touched(factory, own_server):
    schema, other = made_table(factory), made_table(factory, test="t::other")
    bystander, foreign = other.connect(), psycopg.connect(own_server.dsn)
    bystander.execute("select * from p")
    foreign.execute("select 1")
    leak = schema.connect()
    leak.execute("select * from p")
    factory.drop(schema)
    assert bystander.execute("select 1").fetchone() == (1,)
    assert foreign.execute("select 1").fetchone() == (1,)
    for conn in (bystander, foreign, leak):
        conn.close()
    factory.drop(other)


def test_with_the_users_application_name_the_holder_is_found_by_its_locks(own_server):
    dsn = conninfo.build({**conninfo.parse(own_server.dsn, name="x"), "application_name": "my app"})
    factory = SchemaFactory(own_server._replace(dsn=dsn), Run.new(), Settings())
    schema = made_table(factory)
    innocent, leak = psycopg.connect(dsn), schema.connect()
    innocent.execute("select 1")
    leak.execute("select * from p")
    report = factory.drop(schema)
    assert [session.application_name for session in report.ended] == ["my app"]
    assert innocent.execute("select 1").fetchone() == (1,)
    innocent.close()
    leak.close()
    factory.close()


def test_what_cannot_be_ended_is_named_and_the_teardown_is_bounded(own_server, factory):
    """A role that may not end somebody else's session: a superuser holds the lock."""
    with psycopg.connect(own_server.dsn, autocommit=True) as admin:
        admin.execute("create role weak login password 'weak'; grant create on database postgres to weak")
        dsn = conninfo.build({**conninfo.parse(own_server.dsn, name="x"), "user": "weak", "password": "weak"})
        weak = SchemaFactory(own_server._replace(dsn=dsn, origin="external"), Run.new(), Settings())
        schema = made_table(weak)
        with psycopg.connect(own_server.dsn) as holder:
            holder.execute(f'lock table "{schema.name}".p')
            began = time.monotonic()
            with pytest.raises(LeftoverError, match="cannot be dropped.*stays marked"):
                weak.drop(schema, timeout=1.0)
            assert time.monotonic() - began < 10  # the limit is the subject
        weak.drop(schema)
        weak.close()
        admin.execute("drop owned by weak; drop role weak")
