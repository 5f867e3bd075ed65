from __future__ import annotations

import asyncio
import os
import shutil
import subprocess

import psycopg
import pytest

import pgshare
from pgshare import conninfo, drivers
from pgshare.errors import SettingError
from pgshare.ports import free_ports
from pgshare.settings import Settings
from pgshare.suite import suite_postgres

WHERE = "select relnamespace::regnamespace::text from pg_class where relname = 'thing'"
RESETS = ("reset all", "discard all")
NASTY = "p@ss:w/rd#%25 é'\\+&="


@pytest.fixture(scope="module")
def tcp_server():
    (port,) = free_ports(1)
    with suite_postgres(port=port, settings=Settings()) as server:
        with psycopg.connect(server.dsn, autocommit=True) as admin:
            admin.execute(psycopg.sql.SQL("create role nasty superuser login password {}").format(psycopg.sql.Literal(NASTY)))
        yield server


@pytest.fixture(params=["socket", "tcp"])
def schema(request, tcp_server):
    """A schema over a socket and over TCP, with a password that every layer of quoting must carry."""
    parts = {**conninfo.parse(tcp_server.dsn, name="x"), "user": "nasty", "password": NASTY, "connect_timeout": "7"}
    if request.param == "tcp":
        parts["host"] = "127.0.0.1"
    with pgshare.isolated_schema(conninfo.build({**parts, "options": "-c work_mem=5MB"})) as made:
        yield made


def test_psql_and_other_programs_land_in_the_schema(schema, monkeypatch):
    for name in ("PGSERVICE", "PGHOSTADDR", "PGOPTIONS", "PGTARGETSESSIONATTRS"):
        monkeypatch.setenv(name, "nonsense")
    psql = shutil.which("psql")
    if psql is None:
        pytest.skip("psql is not installed (Debian: postgresql-client)")
    for argv, env in (
        ([psql, "-X"], schema.env()),
        ([psql, "-X", schema.dsn], {"PATH": os.environ["PATH"]}),
        ([psql, "-X", schema.url()], {"PATH": os.environ["PATH"]}),
    ):
        done = subprocess.run(
            [*argv, "-Atc", f"create table thing (i int); {WHERE}; drop table thing"],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.splitlines()[-2] == schema.name, done.stderr


def test_sqlalchemy_with_psycopg(schema):
    import sqlalchemy

    for engine in (
        sqlalchemy.create_engine(schema.url("sqlalchemy")),
        sqlalchemy.create_engine(schema.url("sqlalchemy+psycopg")),
        sqlalchemy.create_engine(**schema.engine_args()),
    ):
        meta = sqlalchemy.MetaData()
        sqlalchemy.Table("thing", meta, sqlalchemy.Column("i", sqlalchemy.Integer))
        meta.create_all(engine)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            for reset in RESETS:
                conn.exec_driver_sql("set search_path = public")
                conn.exec_driver_sql(reset)
                assert conn.exec_driver_sql(WHERE).scalar() == schema.name
                assert conn.exec_driver_sql("select current_schema()").scalar() == schema.name
                assert conn.exec_driver_sql("show work_mem").scalar() == "5MB"
        meta.drop_all(engine)
        engine.dispose()


def test_sqlalchemy_with_asyncpg_and_with_psycopgs_asynchronous_side(schema):
    import sqlalchemy
    from sqlalchemy.ext.asyncio import create_async_engine

    async def work():
        for engine in (
            create_async_engine(schema.url("sqlalchemy+asyncpg")),
            create_async_engine(**schema.engine_args("sqlalchemy+asyncpg")),
            create_async_engine(**schema.engine_args("sqlalchemy+psycopg")),
        ):
            async with engine.begin() as conn:
                await conn.execute(sqlalchemy.text("create table thing (i int)"))
                await conn.execute(sqlalchemy.text("set search_path = public"))
                await conn.execute(sqlalchemy.text("reset all"))
                assert (await conn.execute(sqlalchemy.text(WHERE))).scalar() == schema.name
                assert (await conn.execute(sqlalchemy.text("select current_schema()"))).scalar() == schema.name
                assert (await conn.execute(sqlalchemy.text("show work_mem"))).scalar() == "5MB"
                await conn.execute(sqlalchemy.text("drop table thing"))
            await engine.dispose()

    asyncio.run(work())


def test_asyncpg_stays_in_the_schema_after_its_pool_resets_the_session(schema):
    import asyncpg

    async def work():
        async with asyncpg.create_pool(schema.url("asyncpg"), min_size=1, max_size=1) as pool:
            async with pool.acquire() as conn:
                await conn.execute("create table thing (i int); set search_path = public")
            async with pool.acquire() as conn:  # the same connection, after RESET ALL
                assert await conn.fetchval(WHERE) == schema.name
                assert await conn.fetchval("select current_schema()") == schema.name
                assert await conn.fetchval("show work_mem") == "5MB"
                assert await conn.fetchval("show application_name") == schema.application_name

    asyncio.run(work())


def test_unknown_drivers_list_the_known():
    with pytest.raises(SettingError, match="unknown driver 'jdbc'; known: libpq, asyncpg, sqlalchemy"):
        drivers.url({}, "jdbc")
    with pytest.raises(SettingError, match="unknown SQLAlchemy driver 'libpq'"):
        drivers.engine_args({}, "libpq")


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda: drivers.url({"host": "a,b"}, "sqlalchemy"), "SQLAlchemy's URL cannot name several hosts"),
        (lambda: drivers.url({"service": "s"}, "asyncpg"), "the DSN sets service, which asyncpg cannot honour"),
        (lambda: drivers.url({"options": "-e -c a.b=1"}, "asyncpg"), "options hold '-e', which only libpq programs can send"),
        (lambda: drivers.url({"host": "@abstract"}, "asyncpg"), "asyncpg cannot reach the abstract socket '@abstract'"),
        (
            lambda: drivers.url({"channel_binding": "require"}, "asyncpg"),
            "the DSN sets channel_binding, which asyncpg cannot honour",
        ),
        (lambda: drivers.url({"gssencmode": "require"}, "asyncpg"), "the DSN sets gssencmode, which asyncpg cannot honour"),
        (
            lambda: drivers.url({"client_encoding": "latin1"}, "asyncpg"),
            "the DSN sets client_encoding, which asyncpg cannot honour",
        ),
        (lambda: drivers.engine_args({"key_of_2040": "x"}, "sqlalchemy+asyncpg"), "the DSN sets key_of_2040, which asyncpg cannot"),
        (lambda: drivers.env({"keepalives_idle": "3"}, {}), "the DSN sets keepalives_idle, which no PG"),
    ],
)
def test_what_a_form_cannot_say_is_refused_by_name(work, message):
    with pytest.raises(SettingError, match=message):
        work()


def test_asyncpg_does_without_keys_that_only_tune_libpq():
    tuned = {"host": "h", "connect_timeout": "3", "keepalives_idle": "9", "channel_binding": "prefer", "client_encoding": "UTF8"}
    assert drivers.url(tuned, "asyncpg") == "postgresql://h/"


def test_several_hosts_reach_asyncpg_and_sqlalchemy_on_the_one_that_answers(schema):
    import asyncpg
    import sqlalchemy
    from sqlalchemy.ext.asyncio import create_async_engine

    parts = schema.parts
    several = {**parts, "host": f"/nowhere,{parts['host']}", "port": f"1,{parts['port']}"}

    async def work():
        conn = await asyncpg.connect(drivers.url(several, "asyncpg"))
        assert await conn.fetchval("select current_schema()") == schema.name
        await conn.close()
        engine = create_async_engine(**drivers.engine_args(several, "sqlalchemy+asyncpg"))
        async with engine.connect() as bound:
            assert (await bound.execute(sqlalchemy.text("select current_schema()"))).scalar() == schema.name
        await engine.dispose()

    asyncio.run(work())
    engine = sqlalchemy.create_engine(**drivers.engine_args(several))
    with engine.connect() as conn:
        assert conn.exec_driver_sql("select current_schema()").scalar() == schema.name
    engine.dispose()


def test_the_environment_has_no_foreign_variables():
    env = drivers.env(
        {"host": "h", "options": "-c x.y=1"}, {"PATH": "/bin", "PGSERVICE": "s", "PGSHARE_DSN": "keep", "PGAPPNAME": "no"}
    )
    assert env == {"PATH": "/bin", "PGSHARE_DSN": "keep", "PGHOST": "h", "PGOPTIONS": "-c x.y=1"}
