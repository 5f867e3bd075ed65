from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from pgshare import conninfo, database
from pgshare.errors import SettingError
from pgshare.mark import read_mark
from pgshare.run import Run
from pgshare.schema import SchemaFactory
from pgshare.settings import Settings


@pytest.fixture
def made(each_server):
    run = Run.new()
    factory = SchemaFactory(each_server, run, Settings())
    yield lambda test="t": database.create(factory.admin, each_server.dsn, run, test, version_num=each_server.version_num), factory
    factory.close()


def test_a_database_holds_what_a_schema_cannot(made):
    create, factory = made
    found = create("t::whole")
    with found.connect(autocommit=True) as conn:
        conn.execute("create table public.t (i int); create schema another; create extension if not exists plpgsql")
        assert conn.execute("select current_database(), current_schema()").fetchone() == (found.name, "public")
    comment = factory.admin.conn.execute(
        "select shobj_description(oid, 'pg_database') from pg_database where datname = %s", [found.name]
    ).fetchone()
    assert read_mark(comment[0]).test == "t::whole"
    assert not database.drop(factory.admin, found)
    assert factory.admin.conn.execute("select 1 from pg_database where datname = %s", [found.name]).fetchone() is None
    assert not database.drop(factory.admin, found)


def test_sessions_are_ended_before_the_drop_and_reported(made):
    create, factory = made
    found = create()
    idle, busy = found.connect(autocommit=True), found.connect()
    idle.execute("select 1")
    busy.execute("select 2")
    report = database.drop(factory.admin, found)
    assert len(report.leaked) == len(report.ended) == 1
    assert factory.admin.conn.execute("select 1 from pg_database where datname = %s", [found.name]).fetchone() is None
    idle.close()
    busy.close()


def test_eight_at_once_share_one_template(each_server):
    def work(number):
        run = Run.new()
        factory = SchemaFactory(each_server, run, Settings())
        found = database.create(factory.admin, each_server.dsn, run, f"t{number}", version_num=each_server.version_num)
        database.drop(factory.admin, found)
        factory.close()
        return found.name

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(work, range(8)))) == 8


def test_a_role_without_createdb_gets_the_statement(own_server):
    with psycopg.connect(own_server.dsn, autocommit=True) as admin:
        admin.execute("create role nodb login password 'nodb'; grant create on database postgres to nodb")
        try:
            dsn = conninfo.build({**conninfo.parse(own_server.dsn, name="x"), "user": "nodb", "password": "nodb"})
            server = own_server._replace(dsn=dsn)
            factory = SchemaFactory(server, Run.new(), Settings())
            with pytest.raises(
                SettingError, match='pg_database needs a role that may create databases: .*; run: ALTER ROLE "nodb" CREATEDB'
            ):
                database.create(factory.admin, dsn, Run.new(), "t", version_num=own_server.version_num)
            factory.close()
        finally:
            admin.execute("drop owned by nodb; drop role nodb")
