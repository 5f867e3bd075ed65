from __future__ import annotations

import pytest

from pgshare.errors import SettingError, TemplateError
from pgshare.migrate import find_migration, run_migration

USE = """
import pytest
@pytest.mark.parametrize("n", [1, 2])
def test_migrated(pg_conn, n):
    assert pg_conn.execute("select name from things").fetchall() == [("seed",)]
    pg_conn.execute("delete from things"); pg_conn.commit()
"""
MODULE = """
import psycopg
def migrate(dsn):
    with psycopg.connect(dsn) as conn:
        conn.execute("create table things (name text); insert into things values ('seed')")
"""


@pytest.mark.parametrize(
    ("files", "args"),
    [
        ({"mymigration": MODULE}, ("-o", "pg_migrate=mymigration:migrate")),
        ({"mymigration": MODULE, "pyproject": '[tool.pgshare]\nmigrate = "mymigration:migrate"\n'}, ()),
        ({"mymigration": MODULE}, ("--pg-migrate", "mymigration:migrate")),
        ({"conftest": MODULE + "\nimport pytest\n@pytest.fixture(scope='session')\ndef pg_migrate(): return migrate\n"}, ()),
    ],
    ids=["ini", "table", "flag", "fixture"],
)
def test_every_schema_is_migrated_however_the_project_names_it(project, files, args):
    result = project.write(test_a=USE, **files).run(*args, PYTHONPATH=str(project.folder))
    assert result.code == 0, result.out
    assert result.count("passed") == 2


def test_sql_files_run_in_the_order_of_their_names(project):
    (project.folder / "sql").mkdir()
    (project.folder / "sql" / "002_seed.sql").write_text("insert into things values ('seed');")
    (project.folder / "sql" / "001_tables.sql").write_text("create table things (name text); set search_path = nowhere;")
    result = project.write(test_a=USE).run("-o", "pg_migrate=sql/*.sql")
    assert result.code == 0, result.out


def test_a_failing_migration_shows_its_own_traceback_once_and_is_no_hang(project):
    broken = "def migrate(dsn):\n    helper()\ndef helper():\n    raise ValueError('no such column')\n"
    project.write(test_a=USE + "\ndef test_third(pg_dsn): pass\n", mymigration=broken)
    result = project.run("-o", "pg_migrate=mymigration:migrate", PYTHONPATH=str(project.folder))
    assert result.code == 1
    assert result.count("errors") == 3
    assert result.out.count("raise ValueError('no such column')") == 1
    assert result.out.count("the migration failed; its error is shown at test_a.py::test_migrated[1]") >= 2
    assert project.residue() == []


def test_an_error_in_a_file_names_file_and_line(pg_dsn, tmp_path):
    (tmp_path / "1.sql").write_text("create table a (i int);\n\nselect nonsense;\n")
    migration = find_migration("*.sql", str(tmp_path), name="pg_migrate")
    with pytest.raises(TemplateError, match=r"the migration .*run_files failed for t::x: 1\.sql, line 3: column") as caught:
        run_migration(migration, pg_dsn, test="t::x")
    assert caught.value.__cause__ is None  # there is no Python of the project to show


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            "nowhere_mod:migrate",
            "pg_migrate='nowhere_mod:migrate': there is no module 'nowhere_mod'; correct it, or add its folder to pythonpath",
        ),
        ("json:migrate", "pg_migrate='json:migrate': module 'json' has no function 'migrate'"),
        ("migrate", "pg_migrate must be \"package.module:function\" or a glob of .sql files, got 'migrate'"),
        ("no/*.sql", "pg_migrate='no/*.sql' matches no file below /x"),
    ],
)
def test_a_target_that_is_not_there_is_named(target, message):
    with pytest.raises(SettingError) as caught:
        find_migration(target, "/x", name="pg_migrate")
    assert str(caught.value) == message
