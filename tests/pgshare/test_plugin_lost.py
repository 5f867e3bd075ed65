"""The server, or the process that owns it, goes away under the tests: said once, waited for once, and nothing is left."""

from __future__ import annotations

import pytest

KILL_SERVER = "os.kill(pg_server.pid, signal.SIGKILL)"
KILL_SESSION = """
    with __import__('psycopg').connect(pg_server.dsn, autocommit=True) as other:
        other.execute("select pg_terminate_backend(pid) from pg_stat_activity where application_name ~ 'admin$'")
"""
TESTS = """
import os, signal, pytest
def test_before(pg_conn): pass
def test_ends_it(pg_schema, pg_server):
    {how}
@pytest.mark.parametrize("n", range(4))
def test_after(pg_conn, n): pass
def test_database(pg_database): pass
"""


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["one", "xdist"])
def test_a_server_that_ends_is_said_once_to_each_test_without_waiting_again(project, workers):
    result = project.write(test_a=TESTS.format(how=KILL_SERVER)).run("-rE", *workers)
    assert result.code == 1, result.out
    errors = result.count("errors")
    said = "the server of this run ended while tests were running, seen first at test_a.py::test_"
    assert result.count("passed") == 2
    # Sessions outlive the postmaster for a moment: one teardown may still have its way, one connect be merely refused.
    assert (errors, result.out.count(said)) in ((6, 6), (6, 5), (5, 5), (5, 4)), result.out
    assert "plugin.py" not in result.out
    assert "psycopg" not in result.out
    assert result.seconds < 10  # six tests and no wait, of 10 s each: the limit is the subject
    assert project.residue() == []


def test_an_ended_administrative_session_is_replaced(project):
    result = project.write(test_a=TESTS.format(how=KILL_SESSION)).run("-W", "error")
    assert result.code == 0, result.out
    assert result.count("passed") == 7


def test_an_external_server_that_ends_is_waited_for_once(project):
    from pgshare import suite_postgres
    from pgshare.settings import Settings

    with suite_postgres(settings=Settings()) as server:
        how = f"os.kill({server.pid}, signal.SIGKILL)"
        result = project.write(test_a=TESTS.format(how=how)).run(PGSHARE_DSN=server.dsn)
    assert result.code == 1, result.out
    assert (result.count("passed"), result.count("errors")) in ((2, 6), (2, 5)), result.out
    # The first one may still be a refused pg_conn, while the administrative session lives its last moment.
    assert result.out.count("a connection to the server that PGSHARE_DSN names not ready after 10.") in (4, 5, 6), result.out
    assert "plugin.py" not in result.out
    assert "psycopg" not in result.out
    assert result.seconds < 25  # six tests, one wait of 10 s
