"""What a test leaves behind when its set-up goes wrong, and what its author reads."""

from __future__ import annotations

import re
import subprocess
import sys

import psycopg
import pytest

from pgshare import conninfo


def left(project, dsn):
    with psycopg.connect(dsn) as conn:
        look = "select nspname from pg_namespace where starts_with(nspname, %s)"
        return [name for (name,) in conn.execute(look, [project.prefix])]


STACK = """
import pytest
class Stack:
    def __init__(self, dsn): self.dsn = dsn
@pytest.fixture
def stack({needs}): return Stack({dsn})
def test_mixed(stack, pg_dsn): pass
"""


def test_a_refused_mix_leaves_no_schema(project, live_dsn):
    result = project.write(test_a=STACK.format(needs="pg_server", dsn="pg_server.dsn")).run(PGSHARE_DSN=live_dsn)
    assert result.code == 1, result.out
    assert "never sees that schema" in result.out
    assert left(project, live_dsn) == []


def test_a_stack_that_stands_on_the_tests_own_schema_is_no_mix(project):
    result = project.write(test_a=STACK.format(needs="pg_dsn", dsn="pg_dsn")).run()
    assert result.code == 0, result.out


@pytest.mark.parametrize("how", ["pytest.skip('not here')", "raise KeyboardInterrupt", "raise ValueError('no')"])
def test_a_migration_that_does_not_end_leaves_no_schema(project, live_dsn, how):
    project.write(test_a="def test_a(pg_dsn): pass\n", mine=f"import pytest\ndef run(dsn):\n    {how}\n")
    project.run("--pg-migrate", "mine:run", PGSHARE_DSN=live_dsn, PYTHONPATH=str(project.folder))
    assert left(project, live_dsn) == []


TWO = "def test_a(pg_dsn): pass\ndef test_b(pg_dsn): pass\n"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("def run(dsn):\n    helper()\ndef helper():\n    raise ValueError('no such column')\n", "ValueError: no such column"),
        ("import no_such_dependency\n", "ModuleNotFoundError: No module named 'no_such_dependency'"),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
    ],
    ids=["inside", "its import", "import time"],
)
def test_a_failing_migration_shows_the_projects_frames_once_and_none_of_ours(project, text, cause):
    result = project.write(test_a=TWO, mine=text).run("--pg-migrate", "mine:run", PYTHONPATH=str(project.folder))
    assert result.code == 1, result.out
    assert result.count("errors") == 2
    assert len(re.findall(rf"^E +{cause}", result.out, re.M)) == 1
    assert re.search(r"^mine\.py:\d+: ", result.out, re.M)
    assert f"the migration mine:run failed for test_a.py::test_a: {cause}" in result.out
    assert "the migration failed; its error is shown at test_a.py::test_a" in result.out
    assert "pgshare/" not in result.out.replace("pgshare/pgshare", "")
    assert "plugin.py" not in result.out


def test_a_failing_test_shows_its_dsn_without_the_password(project, own_server):
    password = conninfo.parse(own_server.dsn, name="x")["password"]
    project.write(
        test_a="""
        def test_a(pg_dsn, pg_schema, pg_server): assert 0
        def test_b(pg_database): dsn = pg_database.dsn; assert not dsn
        """,
    )
    result = project.run("--showlocals", PGSHARE_DSN=own_server.dsn)
    assert result.count("failed") == 2
    assert "pg_dsn     = 'user=postgres password=" in result.out
    assert password not in result.out


def test_a_failing_fixture_of_the_users_shows_no_frame_of_ours(project):
    project.write(
        test_a="""
        import pytest
        @pytest.fixture
        def mine(pg_conn):
            yield
            raise ValueError("in teardown")
        @pytest.fixture
        def broken(pg_conn): raise ValueError("in setup")
        def test_a(mine): pass
        def test_b(broken): pass
        """
    )
    result = project.run()
    assert result.count("errors") == 2
    assert "plugin.py" not in result.out


def test_a_failing_sql_file_is_one_sentence(project):
    (project.folder / "1.sql").write_text("create table a (i int);\n\nselect nonsense;\n")
    result = project.write(test_a=TWO).run("-o", "pg_migrate=*.sql")
    assert result.code == 1, result.out
    assert 'the migration *.sql failed for test_a.py::test_a: 1.sql, line 3: column "nonsense" does not exist' in result.out
    assert not re.search(r"\.py:\d+: \w+Error", result.out), result.out


def test_a_kept_schema_is_that_of_the_attempt_that_failed(project):
    project.write(test_a="n = 0\ndef test_flaky(pg_conn):\n    global n\n    n += 1\n    assert n == 2\n")
    for workers in ((), ("-n", "1")):
        result = project.run("--pg-keep", "failed", "--reruns", "2", *workers)
        assert result.code == 0, result.out
        kept = re.findall(r"kept schema of test_a.py::test_flaky: .* (\w+)\)", result.out)
        assert [name.rpartition("_")[2] for name in kept] == ["1"], result.out
        (command,) = re.findall(r"harness (reap --run \w+) \(or wait: the server ends by itself after 60 minutes\)", result.out)
        subprocess.run([sys.executable, "-m", "harness", *command.split()], env=project.env(), capture_output=True, check=True)
    assert project.residue() == []


def test_what_a_database_test_adds_elsewhere_is_listed_and_other_workers_databases_are_not(project):
    project.write(
        test_a="""
        import pytest
        @pytest.mark.parametrize("n", range(6))
        def test_none(pg_database, n): pass
        def test_role(pg_database):
            with pg_database.connect(autocommit=True) as conn: conn.execute("create role pgshare_test_stays")
        """
    )
    result = project.run("--pg-census", "-n", "2")
    assert result.code == 0, result.out
    added = re.findall("added outside of its schema by (.*)", result.out)
    assert added
    assert {line.split(": ")[1] for line in added} == {"role pgshare_test_stays"}, result.out
