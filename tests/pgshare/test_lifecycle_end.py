"""The end of a run: late, slow, interrupted in a debugger, with something stuck; and what the controller still reports."""

from __future__ import annotations

import os
import re
import shutil

import pytest

from pgshare.inventory import Inventory
from pgshare.run import ensure_private, write_marker

SLOW_END = """
import os, pytest
@pytest.fixture(scope="session")
def slow(pg_server):
    yield
    import psycopg
    with psycopg.connect(pg_server.dsn, autocommit=True) as conn:
        conn.execute("select pg_sleep(6)")
        with open(os.environ["SEEN"], "a") as file: file.write("torn down\\n")
@pytest.mark.parametrize("n", range(2))
def test_a(slow, pg_conn, n): pg_conn.execute("select 1")
"""


def test_the_server_stays_until_the_slowest_workers_session_fixture_is_torn_down(project):
    """Six seconds: longer than the five after which teardown was cut elsewhere."""
    seen = project.folder / "seen"
    result = project.write(test_a=SLOW_END).run("-n", "2", SEEN=str(seen))
    assert result.code == 0, result.out
    assert seen.read_text() == "torn down\n" * 2
    assert project.residue() == []


def test_a_debugger_keeps_the_schema_and_its_end_leaves_nothing(project):
    project.write(
        test_a="""
        import pdb
        class Asks(pdb.Pdb):
            def interaction(self, frame, found):
                step = getattr(found, "__traceback__", found)
                while "pg_conn" not in step.tb_frame.f_locals: step = step.tb_next
                conn = step.tb_frame.f_locals["pg_conn"]
                print("in the debugger:", conn.execute("select 'mine'::regclass::text").fetchone())
        def test_a(pg_conn):
            pg_conn.execute("create table mine (i int)")
            assert 0
        def test_b(pg_conn): assert pg_conn.execute("select to_regclass('mine')").fetchone() == (None,)
        """
    )
    result = project.run("--pdb", "--pdbcls", "test_a:Asks", PYTHONPATH=str(project.folder))
    assert "in the debugger: ('mine',)" in result.out
    assert (result.count("failed"), result.count("passed")) == (1, 1), result.out
    assert project.residue() == []


def test_quitting_the_debugger_ends_the_run_cleanly(project):
    project.write(test_a="def test_a(pg_conn): assert 0\ndef test_b(pg_conn): pass\n")
    result = project.run("--pdb")  # its input ends at once, which quits
    assert result.code in (1, 2), result.out
    assert project.residue() == []


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one", "xdist"])
def test_what_a_dead_run_left_and_nobody_can_remove_is_listed_once(project, workers):
    """A record of a kind that is not ours to remove: it is never dropped in silence."""
    dead = os.path.join(project.state, "runs", "0000_deadbeef")
    ensure_private(os.path.dirname(dead), 0o711)
    ensure_private(dead, 0o711)
    write_marker(dead, "0000_deadbeef")
    with open(os.path.join(dead, "owner"), "w") as file:
        file.write(f"another-boot\n1\n1\n{dead}\n")
    Inventory(dead, run_id="0000_deadbeef").intend([("container", "pgshare_0000_deadbeef_x", "")])
    result = project.write(test_a="def test_a(pg_conn): pass\ndef test_b(pg_conn): pass\n").run(*workers)
    assert result.code == 0, result.out
    (line,) = re.findall(r"^left by a run that died, and still there: (.*)", result.out, re.M)
    assert line == "container pgshare_0000_deadbeef_x: not removable from here, kept in the inventory"
    shutil.rmtree(dead)
    assert project.residue() == []


def test_what_a_worker_finds_after_its_last_report_reaches_the_controller(project):
    project.write(
        test_a="def test_a(pg_conn): pass\n",
        conftest="""
        from pgshare.door import LIVE
        def pytest_sessionfinish(session):
            if hasattr(session.config, "workerinput"): session.config.stash[LIVE].problems.append("found late")
        """,
    )
    result = project.run("-n", "2")
    assert result.code == 0, result.out
    assert result.out.count("left by a run that died, and still there: found late") == 1
