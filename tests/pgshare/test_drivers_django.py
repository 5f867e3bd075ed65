from __future__ import annotations

import psycopg
import pytest
from recipes import python_block

from pgshare.settings import Settings
from pgshare.suite import suite_postgres

DJANGO_SETTINGS = """
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
def test_committed_rows_are_seen_by_other_threads_and_after_a_reset():
    from threading import Thread
    from django.db import connection, connections
    Thing.objects.create(name="y")
    with connection.cursor() as cursor:
        for reset in ("reset all", "discard all"):
            cursor.execute("set search_path = public")
            cursor.execute(reset)
            assert Thing.objects.count() == 1
    found = []
    def look():
        found.append(Thing.objects.count())
        connections.close_all()
    thread = Thread(target=look)
    thread.start()
    thread.join()
    assert found == [1]
"""


LOOK = (
    "select (select string_agg(datname, ',' order by 1) from pg_database), "
    "(select count(*) from pg_class where relnamespace = 'public'::regnamespace), "
    "(select count(*) from pg_namespace where nspname like 'pgshare%')"
)
MODEL = "from django.db import models\nclass Thing(models.Model):\n    name = models.CharField(max_length=9)\n"
MIGRATION = """
from django.db import migrations, models

class Migration(migrations.Migration):
    initial = True
    fields = [('id', models.AutoField(primary_key=True)), ('name', models.CharField(max_length=9))]
    operations = [migrations.CreateModel('Thing', fields)]
"""
PLUGINS = ("-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:asyncio", "-p", "pytest_django", "--ds=settings")


@pytest.fixture(scope="module")
def server():
    with suite_postgres(settings=Settings()) as found:
        yield found


@pytest.fixture
def shop(project):
    """A Django project with a model and a migration; the test adds conftest.py."""
    (project.folder / "shop" / "migrations").mkdir(parents=True)
    files = {
        "shop/__init__.py": "",
        "shop/migrations/__init__.py": "",
        "shop/models.py": MODEL,
        "shop/migrations/0001_initial.py": MIGRATION,
        "settings.py": DJANGO_SETTINGS,
        "test_shop.py": DJANGO_TESTS,
    }
    for name, text in files.items():
        (project.folder / name).write_text(text)
    return project


def test_pytest_django_makes_no_test_database_and_touches_no_public(shop, server):
    """The recipe of docs/drivers.md, word for word."""
    shop.write(conftest=python_block("drivers.md", "django_db_setup"))
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        before = admin.execute(LOOK).fetchone()
        result = shop.run("-m", "pgtest", plugins=PLUGINS, PGSHARE_DSN=server.dsn, PYTHONPATH=str(shop.folder))
        assert result.code == 0, result.out
        assert result.count("passed") == 3
        assert admin.execute(LOOK).fetchone() == before


def test_without_the_recipe_pytest_django_stops_and_drops_nothing(shop, server):
    shop.write(
        conftest="""
        import pgshare, pytest

        @pytest.fixture(scope="session")
        def django_db_modify_db_settings(pg_server):
            from django.db import connections
            with pgshare.isolated_schema(pg_server.dsn) as schema:
                connections["default"].settings_dict.update(schema.django())
                yield
        """
    )
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute("create database shop_dev")
        before = admin.execute(LOOK).fetchone()
        dsn = psycopg.conninfo.make_conninfo(server.dsn, dbname="shop_dev")
        result = shop.run(plugins=PLUGINS, PGSHARE_DSN=dsn, PYTHONPATH=str(shop.folder))
        assert result.code != 0, result.out
        assert 'database "shop_dev" is being accessed by other users' in result.out
        assert admin.execute(LOOK).fetchone() == before
        admin.execute("drop database shop_dev")
