from __future__ import annotations

import re
import subprocess
import sys

import psycopg
import pytest

from pgshare import keep

TESTS = """
def test_fails(pg_conn):
    pg_conn.execute("create table evidence (i int)"); pg_conn.commit()
    assert 0
def test_passes(pg_conn): pass
"""


def harness(project, *args):
    return subprocess.run([sys.executable, "-m", "harness", *args], env=project.env(), capture_output=True, text=True, check=False)


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one", "xdist"])
def test_a_failed_tests_schema_is_kept_and_one_command_finds_it(project, workers):
    result = project.write(test_a=TESTS).run("--pg-keep", "failed", *workers)
    assert result.code == 1
    kept = re.findall(r'kept schema of (\S+): psql "\$\(harness pg url (\w+)\)"', result.out)
    assert [test for test, _ in kept] == ["test_a.py::test_fails"]
    url = harness(project, "pg", "url", kept[0][1])
    assert url.returncode == 0, url.stderr
    with psycopg.connect(url.stdout.strip()) as conn:
        assert conn.execute("select count(*) from evidence").fetchone() == (0,)
        assert conn.execute("select current_schema()").fetchone() == (kept[0][1],)
    assert url.stdout.split(":")[2].split("@")[0] not in result.out  # the password
    (command,) = re.findall(r"remove what was kept: harness (reap --run \w+)", result.out)
    assert harness(project, "reap").returncode == 0  # a kept run is not dead
    assert project.residue() != []
    reap = harness(project, *command.split())
    assert reap.returncode == 0, reap.stderr
    assert project.residue() == []


def test_on_an_external_server_the_schema_stays_until_it_is_reaped(project, live_dsn):
    project.write(test_a=TESTS)
    env = {"PGSHARE_DSN": live_dsn}
    result = project.run("--pg-keep", "always", **env)
    kept = re.findall(r"harness pg url (\w+)", result.out)
    assert len(kept) == 2
    again = project.run("--pg-keep", "never", **env)  # neither the next run nor a sweep of its own touches them
    assert again.code == 1
    with psycopg.connect(live_dsn) as conn:
        look = "select count(*) from pg_namespace where nspname = any(%s)"
        assert conn.execute(look, [kept]).fetchone() == (2,)
        conn.rollback()
        (command,) = re.findall(r"remove what was kept: harness (reap --run \w+)", result.out)
        reap = harness(project, *command.split())
        assert reap.returncode == 0, reap.stderr
        assert conn.execute(look, [kept]).fetchone() == (0,)
    assert project.residue() == []


def test_by_default_nothing_is_kept(project):
    result = project.write(test_a=TESTS).run()
    assert "kept schema" not in result.out
    assert project.residue() == []


def test_the_command_has_no_password():
    assert keep.how_to_connect("pgshare_x") == 'psql "$(harness pg url pgshare_x)"'
