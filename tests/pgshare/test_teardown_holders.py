"""Who is in the way of a drop is found whatever they hold, and what the server does by itself is nobody's leak."""

from __future__ import annotations

import time

import psycopg
import pytest
from projects import until

from pgshare import conninfo
from pgshare.errors import LeftoverError
from pgshare.run import Run
from pgshare.schema import SchemaFactory
from pgshare.settings import Settings


@pytest.fixture(params=["our application_name", "the user's application_name"])
def factory(own_server, request):
    named = {} if request.param.startswith("our") else {"application_name": "my app"}
    dsn = conninfo.build({**conninfo.parse(own_server.dsn, name="x"), **named})
    made = SchemaFactory(own_server._replace(dsn=dsn), Run.new(), Settings())
    yield made
    made.close()


def is_gone(factory, schema):
    return factory.admin.conn.execute("select 1 from pg_namespace where nspname = %s", [schema.name]).fetchone() is None


@pytest.mark.parametrize("statement", ["create table only_here (i int)", "alter table p add column j int", "drop table p"])
def test_a_transaction_that_nobody_else_can_see_into_is_found_and_ended(factory, statement):
    schema = factory.create("t::uncommitted")
    with schema.connect() as conn:
        conn.execute("create table p (i int)")
    conn = schema.connect()
    conn.execute(statement)
    pid = conn.info.backend_pid
    report = factory.drop(schema)
    assert [session.pid for session in report.ended] == [pid]
    assert is_gone(factory, schema)
    conn.close()


def test_a_prepared_transaction_that_made_a_table_is_named(factory):
    schema = factory.create("t::two_phase")
    with schema.connect(autocommit=True) as conn:
        conn.execute("begin; create table only_here (i int); prepare transaction 'made here'")
    began = time.monotonic()
    with pytest.raises(LeftoverError, match="prepared transaction 'made here' of role 'postgres'"):
        factory.drop(schema)
    assert time.monotonic() - began < 2  # the limit is the subject: no wait changes it
    factory.admin.conn.execute("rollback prepared 'made here'")
    factory.drop(schema)
    assert is_gone(factory, schema)


def test_connections_left_beside_a_prepared_transaction_are_ended_too(factory):
    schema = factory.create("t::two_phase")
    with schema.connect(autocommit=True) as conn:
        conn.execute("create table p (i int)")
        conn.execute("begin; insert into p values (1); prepare transaction 'beside'")
    leak = schema.connect()
    leak.execute("select * from p")
    with pytest.raises(LeftoverError) as caught:
        factory.drop(schema)
    assert "prepared transaction 'beside'" in str(caught.value)
    assert f"pid {leak.info.backend_pid} " in str(caught.value)
    with pytest.raises(psycopg.OperationalError):
        leak.execute("select 1")
    leak.close()
    factory.admin.conn.execute("rollback prepared 'beside'")
    factory.drop(schema)


def test_an_autovacuum_of_the_tests_tables_is_nobodys_leak(factory):
    schema = factory.create("t::big")
    conn = factory.admin.conn
    conn.execute("alter system set autovacuum_naptime = '1s'; ")
    conn.execute("select pg_reload_conf()")
    try:
        with schema.connect(autocommit=True) as work:
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
                "select 1 from pg_stat_activity a join pg_locks l using (pid) join pg_class c on c.oid = l.relation "
                "where a.backend_type = 'autovacuum worker' and c.relname = 'big'"
            ).fetchone(),
        )
        report = factory.drop(schema)
        assert not report, str(report)
        assert is_gone(factory, schema)
    finally:
        conn.execute("alter system reset autovacuum_naptime")
        conn.execute("select pg_reload_conf()")


def test_workers_of_a_parallel_query_count_as_their_leader(factory):
    schema = factory.create("t::parallel")
    with schema.connect(autocommit=True) as work:
        work.execute("create table big as select i from generate_series(1, 2000000) i; alter table big set (parallel_workers = 2)")
    conn = psycopg.connect(schema.dsn, autocommit=True)
    conn.execute("set debug_parallel_query = on" if conn.info.server_version >= 160000 else "set force_parallel_mode = on")
    conn.execute("set parallel_setup_cost = 0; set parallel_tuple_cost = 0; set min_parallel_table_scan_size = 0")
    conn.pgconn.send_query(b"select count(*) from big a join big b on a.i % 100 = b.i % 100")
    until(
        "parallel workers",
        lambda: factory.admin.conn.execute("select 1 from pg_stat_activity where backend_type = 'parallel worker'").fetchone(),
    )
    report = factory.drop(schema)
    assert [session.pid for session in report.ended] == [conn.info.backend_pid]
    conn.close()


def test_a_connection_closed_inside_its_transaction_is_no_leak(factory):
    for _ in range(30):
        schema = factory.create("t")
        with schema.connect(autocommit=True) as conn:
            conn.execute("create table p (i int)")
        conn = schema.connect()
        conn.execute("select * from p")
        conn.close()
        report = factory.drop(schema)
        assert not report, str(report)
