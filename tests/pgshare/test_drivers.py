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
        with engine.connect() as conn:
            assert conn.exec_driver_sql(WHERE).scalar() == schema.name
            assert conn.exec_driver_sql("show work_mem").scalar() == "5MB"
        meta.drop_all(engine)
        engine.dispose()


def test_sqlalchemy_with_asyncpg(schema):
    import sqlalchemy
    from sqlalchemy.ext.asyncio import create_async_engine

    async def work():
        for engine in (
            create_async_engine(schema.url("sqlalchemy+asyncpg")),
            create_async_engine(**schema.engine_args("sqlalchemy+asyncpg")),
        ):
            async with engine.begin() as conn:
                await conn.execute(sqlalchemy.text("create table thing (i int)"))
                assert (await conn.execute(sqlalchemy.text(WHERE))).scalar() == schema.name
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
        (lambda: drivers.env({"keepalives_idle": "3"}, {}), "the DSN sets keepalives_idle, which no PG"),
    ],
)
def test_what_a_form_cannot_say_is_refused_by_name(work, message):
    with pytest.raises(SettingError, match=message):
        work()


def test_the_environment_has_no_foreign_variables():
    env = drivers.env(
        {"host": "h", "options": "-c x.y=1"}, {"PATH": "/bin", "PGSERVICE": "s", "PGSHARE_DSN": "keep", "PGAPPNAME": "no"}
    )
    assert env == {"PATH": "/bin", "PGSHARE_DSN": "keep", "PGHOST": "h", "PGOPTIONS": "-c x.y=1"}


DJANGO_SETTINGS = """
import os, json
SECRET_KEY = "x"
INSTALLED_APPS = ["shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "replaced by the fixture"}}
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
"""
DJANGO_TESTS = """
import pytest
from shop.models import Thing

@pytest.mark.django_db
@pytest.mark.parametrize("n", [1, 2])
def test_rows_are_in_the_schema(n):
    from django.db import connection
    assert Thing.objects.count() == 0
    Thing.objects.create(name="x")
    with connection.cursor() as cursor:
        cursor.execute("select current_schema(), relnamespace::regnamespace::text from pg_class where relname = 'shop_thing'")
        schema, where = cursor.fetchone()
    assert schema == where and schema.startswith("pgshare_")

@pytest.mark.django_db(transaction=True)
def test_committed_rows_too():
    Thing.objects.create(name="y")
"""


def test_django_makes_no_test_database_and_touches_no_public(project, tcp_server):
    """The recipe of docs/drivers.md, word for word."""
    from recipes import python_block

    (project.folder / "shop" / "migrations").mkdir(parents=True)
    files = {
        "shop/__init__.py": "",
        "shop/migrations/__init__.py": "",
        "shop/models.py": "from django.db import models\nclass Thing(models.Model):\n    name = models.CharField(max_length=9)\n",
        "shop/migrations/0001_initial.py": (
            "from django.db import migrations, models\nclass Migration(migrations.Migration):\n    initial = True\n    operations = ["
            "migrations.CreateModel('Thing', [('id', models.AutoField(primary_key=True)), ('name', models.CharField(max_length=9))])]\n"
        ),
        "settings.py": DJANGO_SETTINGS,
        "conftest.py": python_block("drivers.md", "django_db_setup"),
        "test_shop.py": DJANGO_TESTS,
    }
    for name, text in files.items():
        (project.folder / name).write_text(text)
    with psycopg.connect(tcp_server.dsn, autocommit=True) as admin:
        look = (
            "select (select string_agg(datname, ',' order by 1) from pg_database), "
            "(select count(*) from pg_class where relnamespace = 'public'::regnamespace), "
            "(select count(*) from pg_namespace where nspname like 'pgshare%')"
        )
        before = admin.execute(look).fetchone()
        result = project.run(
            "-p", "pytest_django", "--ds=settings", PGSHARE_DSN=tcp_server.dsn, PYTHONPATH=str(project.folder),
            plugins=("-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:asyncio"),
        )  # fmt: skip
        assert result.code == 0, result.out
        assert result.count("passed") == 3
        assert admin.execute(look).fetchone() == before
