from __future__ import annotations

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg import errors

import pgshare
from pgshare import conninfo, probe
from pgshare.errors import SettingError
from pgshare.mark import read_mark
from pgshare.run import Run
from pgshare.schema import SchemaFactory, refuse_mixed
from pgshare.settings import Settings


@pytest.fixture
def factory(each_server):
    made = SchemaFactory(each_server, Run.new(), Settings())
    yield made
    made.close()


@pytest.fixture
def schema(factory):
    made = factory.create("tests/x.py::test[a-b]")
    yield made
    factory.drop(made)


def exists(factory, name):
    return factory.admin.conn.execute("select 1 from pg_namespace where nspname = %s", [name]).fetchone() is not None


def test_unqualified_names_land_in_the_schema_and_go_with_it(factory):
    made = factory.create("t")
    with made.connect() as conn:
        conn.execute("create table thing (i int)")
        where = conn.execute("select relnamespace::regnamespace::text from pg_class where relname = 'thing'").fetchone()
    assert where == (made.name,)
    assert not factory.drop(made)
    assert not exists(factory, made.name)
    assert not factory.drop(made)  # absent is success


def test_two_schemas_never_see_each_other(factory):
    first, second = factory.create("a"), factory.create("b")
    for made, value in ((first, 1), (second, 2)):
        with made.connect() as conn:
            conn.execute(f"create table same (i int); insert into same values ({value})")
    for made, value in ((first, 1), (second, 2)):
        with made.connect() as conn:
            assert conn.execute("select i from same").fetchall() == [(value,)]
        factory.drop(made)


@pytest.mark.parametrize(
    "test", ["t::x[" + "y" * 400 + "a]", "t::x[" + "y" * 400 + "b]", "emoji 🎉 'quote' \"double\" back\\slash ::[", "nul\0byte"]
)
def test_names_are_short_ascii_and_distinct_and_the_full_test_id_is_in_the_mark(factory, test):
    first, second = factory.create(test), factory.create(test)
    try:
        assert first.name != second.name
        for made in (first, second):
            assert made.name.isascii()
            assert len(made.name) <= 63
            comment = factory.admin.conn.execute(
                "select obj_description(to_regnamespace(%s), 'pg_namespace')", [made.name]
            ).fetchone()
            mark = read_mark(comment[0])
            assert mark is not None
            assert mark.test == test
            assert made.name.startswith(f"pgshare_{mark.run}_")
    finally:
        factory.drop(first)
        factory.drop(second)


def test_public_is_not_on_the_path(factory, schema):
    factory.admin.conn.execute("create table if not exists public.leftover (i int); insert into public.leftover values (1)")
    try:
        with schema.connect(autocommit=True) as conn:
            conn.execute("create table if not exists leftover (i int)")
            assert conn.execute("select count(*) from leftover").fetchone() == (0,)
            conn.execute("drop table leftover")
            with pytest.raises(errors.UndefinedTable):
                conn.execute("select * from leftover")
    finally:
        factory.admin.conn.execute("drop table public.leftover")


@pytest.mark.parametrize("attack", ["discard all", "reset all", "begin; set search_path = public; rollback"])
def test_sessions_return_to_the_schema(schema, attack):
    with schema.connect(autocommit=True) as conn:
        conn.execute("set search_path = public")
        conn.execute("reset search_path" if attack.startswith("begin") else "select 1")
        conn.execute(attack)
        assert conn.execute("select current_schema()").fetchone() == (schema.name,)


def test_what_code_sets_in_one_session_does_not_reach_the_next(schema):
    with schema.connect(autocommit=True) as conn:
        conn.execute("set search_path = public")
        conn.execute("select pg_catalog.set_config('search_path', '', false)")
        assert conn.execute("select current_schema()").fetchone() == (None,)
    with schema.connect() as conn:
        conn.execute("set local search_path = public")
    with schema.connect() as conn:
        assert conn.execute("select current_schema()").fetchone() == (schema.name,)


def test_a_prepared_plan_never_meets_another_schema(factory):
    results = []
    for columns in ("i int", "t text, u text"):
        made = factory.create("t")
        with made.connect(prepare_threshold=0) as conn:
            conn.execute(f"create table p ({columns})")
            results.append(len(conn.execute("select * from p").description))
        factory.drop(made)
    assert results == [1, 2]


def test_extra_schemas_come_behind_and_must_exist(each_server):
    run = Run.new()
    with psycopg.connect(each_server.dsn, autocommit=True) as admin:
        admin.execute("create schema extra_lib; create function extra_lib.one() returns int language sql as 'select 1'")
        try:
            factory = SchemaFactory(each_server, run, Settings(schemas=("extra_lib",)))
            made = factory.create("t")
            with made.connect() as conn:
                assert conn.execute("select one(), current_schema()").fetchone() == (1, made.name)
            factory.drop(made)
            factory.close()
        finally:
            admin.execute("drop schema extra_lib cascade")
    factory = SchemaFactory(each_server, run, Settings(schemas=("missing_one",), sources={"schemas": "PGSHARE_SCHEMAS"}))
    with pytest.raises(SettingError, match="PGSHARE_SCHEMAS names schema 'missing_one', which does not exist in this database"):
        factory.create("t")
    left = factory.admin.conn.execute("select count(*) from pg_namespace where nspname like %s", [f"pgshare_{run.id}%"])
    assert left.fetchone() == (0,)
    factory.close()


def test_public_as_an_extra_schema_warns_when_it_has_tables(each_server):
    factory = SchemaFactory(each_server, Run.new(), Settings(schemas=("public",)))
    for number in range(7):
        factory.admin.conn.execute(f"create table public.somebodys{number} (i int)")
    try:
        names = ", ".join(f"somebodys{number}" for number in range(5))
        with pytest.warns(UserWarning, match=rf"puts public on the path, and it has tables \({names}\)"):
            made = factory.create("t")
        factory.drop(made)
    finally:
        for number in range(7):
            factory.admin.conn.execute(f"drop table public.somebodys{number}")
        factory.close()


def test_a_dsn_that_sets_a_search_path_is_refused_before_anything_is_made(each_server):
    dsn = conninfo.build({**conninfo.parse(each_server.dsn, name="x"), "options": "-c search_path=mine"})
    with pytest.raises(SettingError, match="already sets search_path"), pgshare.isolated_schema(dsn):
        pass


def test_the_proof_is_made_once_for_each_shape_of_dsn(factory, monkeypatch):
    seen = []
    real = probe.prove_isolation
    monkeypatch.setattr(probe, "prove_isolation", lambda *args, **names: (seen.append(args), real(*args, **names))[1])
    for _ in range(5):
        factory.drop(factory.create("t"))
    assert len(seen) == (1 if factory._postgres.origin == "external" else 0)  # in front of a server of ours there is nothing


def test_the_connection_of_the_proof_is_the_tests_own_first_one(each_server):
    factory = SchemaFactory(each_server._replace(origin="external"), Run.new(), Settings())
    made = factory.create("t", keep_spare=True)
    conn = factory.connect(made)
    assert conn.info.transaction_status.name == "IDLE"
    assert conn.execute("select current_schema()").fetchone() == (made.name,)
    other = factory.connect(made)
    assert other is not conn
    conn.close()
    other.close()
    assert not factory.drop(made)
    unused = factory.create("t2", keep_spare=True)
    assert not factory.drop(unused)
    factory.close()


def test_a_broken_administrative_connection_is_made_anew(factory, each_server):
    factory.drop(factory.create("t"))
    pid = factory.admin.conn.info.backend_pid
    with psycopg.connect(each_server.dsn, autocommit=True) as other:
        other.execute("select pg_terminate_backend(%s)", [pid])
    made = factory.create("t")
    assert factory.admin.conn.info.backend_pid != pid
    factory.drop(made)


def test_eight_factories_that_start_at_once_are_all_green(each_server):
    barrier = threading.Barrier(8)

    def work(_):
        made = SchemaFactory(each_server, Run.new(), Settings())
        barrier.wait(60)
        for _ in range(6):
            made.drop(made.create("t"))
        made.close()
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_is_not_utf8_works(each_server, encoding):
    with psycopg.connect(each_server.dsn, autocommit=True) as admin:
        admin.execute(f"create database odd template template0 encoding '{encoding}' lc_collate 'C' lc_ctype 'C'")
        try:
            dsn = conninfo.build({**conninfo.parse(each_server.dsn, name="x"), "dbname": "odd"})
            with pgshare.isolated_schema(dsn, test="snow ☃") as made, made.connect() as conn:
                conn.execute("create table t (i int)")
        finally:
            admin.execute("drop database odd with (force)")


def test_objects_of_another_role_go_with_the_schema(factory, schema):
    factory.admin.conn.execute("create role app_role")
    try:
        made = factory.create("t")
        with made.connect(autocommit=True) as conn:
            conn.execute(f'grant all on schema "{made.name}" to app_role')
            conn.execute("set role app_role; create table theirs (i int)")
        assert not factory.drop(made)
        assert not exists(factory, made.name)
    finally:
        factory.admin.conn.execute("drop role app_role")


def test_without_pytest_the_schema_is_gone_after_an_exception(each_server):
    seen = []
    with pytest.raises(KeyError), pgshare.isolated_schema(each_server.dsn) as made:
        seen.append(made.name)
        raise KeyError
    with psycopg.connect(each_server.dsn) as conn:
        assert conn.execute("select count(*) from pg_namespace where nspname = %s", seen).fetchone() == (0,)


def test_without_pytest_leaks_are_warned_about(each_server):
    with pytest.warns(pgshare.ConnectionLeakWarning, match="left open: pid"), pgshare.isolated_schema(each_server.dsn) as made:
        conn = made.connect(autocommit=True)
        conn.execute("select 42")
    conn.close()


def test_a_schema_beside_a_stack_is_refused_with_the_reason(schema, each_server):
    refuse_mixed(schema.dsn, schema)
    with pytest.raises(SettingError, match="the stack's server works on the DSN it was started with and never sees that schema"):
        refuse_mixed(each_server.dsn, schema)


def test_channel_names_are_the_tests_own_and_fit(schema):
    assert schema.channel("jobs") == f"{schema.name}_jobs"
    long = schema.channel("x" * 80)
    assert len(long) <= 63
    assert long != schema.channel("x" * 81)
    with warnings.catch_warnings(), schema.connect(autocommit=True) as conn:
        conn.execute(psycopg.sql.SQL("listen {}").format(psycopg.sql.Identifier(long)))
