"""Whatever happens to a run: one server, every test its own schema, nothing left, nothing foreign touched."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import psycopg
import pytest
from projects import PLUGINS, processes, until

from pgshare import child

MANY = """
import os, pytest

@pytest.mark.parametrize("n", range(12))
def test_own_rows(pg_conn, pg_server, n):
    pg_conn.execute("create table same (i int)")
    pg_conn.execute("insert into same values (1)"); pg_conn.commit()
    assert pg_conn.execute("select count(*) from same").fetchone() == (1,)
    with open(os.environ["SERVERS"], "a") as file:
        file.write(pg_server.dsn + "\\n")
"""


def servers(project):
    path = project.folder / "servers"
    return set(path.read_text().splitlines()) if path.exists() else set()


def run_many(project, *args, **env):
    return project.run(*args, SERVERS=str(project.folder / "servers"), **env)


@pytest.mark.parametrize("dist", ["load", "worksteal", "loadfile"])
def test_four_workers_share_one_server(project, dist):
    result = run_many(project.write(test_a=MANY), "-n", "4", "--dist", dist)
    assert result.code == 0, result.out
    assert len(servers(project)) == 1
    assert result.out.count("embedded Postgres") == 1
    assert project.residue() == []


def test_repeats_reruns_and_random_order_get_a_fresh_schema_each_time(project):
    project.write(
        test_a="""
        import pytest
        @pytest.fixture
        def sometimes_broken(pg_schema):
            global broken
            broken = not globals().get("broken", False)
            if broken: raise RuntimeError("broken setup")
        def test_flaky(pg_conn):
            global count
            count = globals().get("count", 0) + 1
            pg_conn.execute("create table same (i int)"); pg_conn.commit()
            assert count % 2 == 0
        def test_setup(sometimes_broken, pg_conn): pg_conn.execute("create table same (i int)")
        """
    )
    plugins = tuple(part for part in PLUGINS if part not in ("no:randomly",) or part == "-p")
    plugins = ("-p", "no:cacheprovider", "-p", "no:pytest_django", "-p", "no:asyncio", "-p", "no:anyio")
    result = project.run("--reruns", "2", "--count", "3", "-p", "randomly", plugins=plugins)
    assert result.code == 0, result.out
    assert result.count("passed") == 6
    assert project.residue() == []


@pytest.mark.parametrize("args", [("-x",), ("--maxfail=1", "-n", "2"), ("--lf",)], ids=lambda args: " ".join(args))
def test_a_run_that_stops_early_is_torn_down(project, args):
    project.write(test_a="def test_a(pg_conn): assert 0\ndef test_b(pg_conn): pass\ndef test_c(pg_conn): assert 0\n")
    result = project.run(*args, plugins=tuple(part for part in PLUGINS if part != "no:cacheprovider")[1:])
    assert result.code in (1, 2), result.out
    assert project.residue() == []


@pytest.mark.parametrize("how", ["pytest.exit('enough')", "raise KeyboardInterrupt", "import sys; sys.exit(3)"])
def test_leaving_by_exception_is_torn_down(project, how):
    project.write(
        test_a=f"import pytest\ndef test_a(pg_conn):\n    pg_conn.execute('select 1')\n    {how}\ndef test_b(pg_conn): pass\n"
    )
    result = project.run()
    assert result.code != 0
    assert project.residue() == []


CRASH = """
import os, pytest
def test_crash(pg_schema):
    conn = pg_schema.connect(); conn.execute("create table t (i int)")
    os._exit(1)
@pytest.mark.parametrize("n", range(8))
def test_others(pg_conn, pg_server, n):
    pg_conn.execute("create table same (i int)")
    with open(os.environ["SERVERS"], "a") as file: file.write(pg_server.dsn + "\\n")
"""


@pytest.mark.parametrize("args", [("-n", "2"), ("-n", "1"), ("-n", "2", "--max-worker-restart=0")], ids=lambda args: " ".join(args))
def test_a_worker_that_crashes_does_not_take_the_server_along(project, args):
    result = run_many(project.write(test_a=CRASH), *args)
    assert result.code == 1, result.out
    assert len(servers(project)) == 1
    assert result.count("failed") == 1
    assert project.residue() == []


SLOW = """
import os, pathlib, pytest
@pytest.mark.parametrize("n", range(4))
def test_slow(pg_conn, n):
    pg_conn.execute("create table t (i int)")
    pathlib.Path(os.environ["SERVERS"] + f".{os.getpid()}").touch()
    pg_conn.execute("select pg_sleep(600)")
"""


def started(project, count):
    return until("tests in the middle", lambda: len(list(project.folder.glob("servers.*"))) >= count, seconds=60)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=lambda number: number.name)
def test_whatever_signal_ends_the_run_nothing_is_left(project, workers, number):
    project.write(test_a=SLOW)
    args = ("-n", str(workers)) if workers else ()
    with project.running(*args, SERVERS=str(project.folder / "servers")) as process:
        started(project, max(workers, 1))
        process.send_signal(number)
        if number == signal.SIGINT and workers:
            # Workers do not see the terminal's signal here: a person's second Ctrl-C ends xdist's wait for them.
            process.send_signal(number)
        process.wait(60)
        project.wait_clean()


def owners(project):
    """The sweeper, then the keeper: killed in this order, neither cleans."""
    found = [pid for pid, line in processes(project.state) if "pgshare.keeper" in line]
    assert len(found) == 2
    return sorted(found, key=lambda pid: child.read_stat(pid)[1] not in found)


def test_killing_everything_at_once_leaves_a_record_from_which_the_next_run_cleans(project):
    project.write(test_a=SLOW)
    with project.running("-n", "2", SERVERS=str(project.folder / "servers")) as process:
        started(project, 2)
        # pytest, its workers, the keeper and its sweeper in one go; the server dies of it.
        os.kill(process.pid, signal.SIGSTOP)
        for pid in [process.pid, *owners(project)]:
            os.kill(pid, signal.SIGKILL)
        process.wait(60)
    until("the end of the server", lambda: not [line for line in project.residue() if line.startswith("process")])
    assert project.residue() != []
    reap = subprocess.run(
        [sys.executable, "-m", "harness", "ps", "--all"], env=project.env(), capture_output=True, text=True, check=True
    )
    assert "  dead  " in reap.stdout
    assert "process postgres" in reap.stdout
    reap = subprocess.run([sys.executable, "-m", "harness", "reap"], env=project.env(), capture_output=True, text=True, check=False)
    assert (reap.returncode, reap.stderr) == (0, "")
    assert project.residue() == []


def test_a_dead_runs_leftovers_are_removed_by_the_next_run(project):
    project.write(test_a=SLOW, test_b="def test_b(pg_conn): pass\n")
    with project.running("test_a.py", SERVERS=str(project.folder / "servers")) as process:
        started(project, 1)
        for pid in [*owners(project), process.pid]:
            os.kill(pid, signal.SIGKILL)
        process.wait(60)
    until("the end of the server", lambda: not [line for line in project.residue() if line.startswith("process")])
    assert project.residue() != []
    result = project.run("test_b.py")
    assert result.code == 0, result.out
    assert project.residue() == []


def test_two_runs_at_once_never_share_and_never_clean_each_other(project):
    project.write(test_a=MANY)
    results = []
    with project.running("-n", "2", SERVERS=str(project.folder / "one")) as first:
        second = project.run("-n", "2", SERVERS=str(project.folder / "two"))
        results = [first.wait(90), second.code]
    assert results == [0, 0], second.out
    dsns = [set((project.folder / name).read_text().splitlines()) for name in ("one", "two")]
    assert [len(dsn) for dsn in dsns] == [1, 1]
    assert not dsns[0] & dsns[1]
    project.wait_clean()


def test_two_runs_on_one_external_server_are_disjoint(project, live_dsn):
    project.write(test_a=MANY)
    with project.running("-n", "2", SERVERS=str(project.folder / "one"), PGSHARE_DSN=live_dsn) as first:
        second = project.run("-n", "2", SERVERS=str(project.folder / "two"), PGSHARE_DSN=live_dsn)
        assert [first.wait(90), second.code] == [0, 0], second.out
    with psycopg.connect(live_dsn) as conn:
        left = conn.execute("select nspname from pg_namespace where nspname like %s", [project.prefix.replace("_", "\\_") + "%"])
        assert left.fetchall() == []


def test_a_test_timeout_leaves_no_query_behind(project):
    """pytest-timeout interrupts the client; the query would run on in the server."""
    project.write(
        test_a="""
        import pytest
        @pytest.mark.timeout(5)
        def test_slow(pg_conn):
            pg_conn.execute("create table t (i int)")
            pg_conn.execute("select pg_sleep(600)")
        def test_next(pg_conn, pg_server):
            import psycopg
            with psycopg.connect(pg_server.dsn) as conn:
                assert conn.execute("select count(*) from pg_stat_activity where query like '%pg_sleep(600)' ").fetchone() == (0,)
        """
    )
    result = project.run("--timeout-method=signal")
    assert (result.count("failed"), result.count("passed")) == (1, 1), result.out
    assert project.residue() == []


def test_a_thread_timeout_that_ends_the_process_leaves_nothing(project):
    project.write(
        test_a="import pytest\n@pytest.mark.timeout(1)\ndef test_slow(pg_conn): pg_conn.execute('select pg_sleep(600)')\n"
    )
    assert project.run("--timeout-method=thread").code != 0
    project.wait_clean()


def test_a_run_started_in_the_background_of_a_shell_is_cleaned_as_well(project):
    """``cmd &`` leaves INT and QUIT ignored in everything that it starts."""
    project.write(test_a=SLOW)
    line = f"{sys.executable} -m pytest {' '.join(PLUGINS)} & echo $!; wait"
    with subprocess.Popen(
        ["/bin/sh", "-c", line], cwd=project.folder, env=project.env(SERVERS=str(project.folder / "servers")),
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    ) as shell:  # fmt: skip
        pid = int(shell.stdout.readline())
        started(project, 1)
        os.kill(pid, signal.SIGKILL)
        project.wait_clean()


def test_the_run_folder_is_not_pytests(project):
    project.write(
        test_a="def test_a(pg_conn, tmp_path): assert pg_conn.execute('show data_directory').fetchone()[0].count('pytest-') == 0\n"
    )
    result = project.run("-o", "tmp_path_retention_policy=failed", "--basetemp", str(project.folder / "base"))
    assert result.code == 0, result.out
    assert project.residue() == []


BASETEMP = """
import os, pathlib
from pgshare.deadline import Deadline, NotYet, poll
def wait_for(path):
    def attempt():
        if not path.exists(): raise NotYet(f"no {path}")
    poll("the other run", attempt, Deadline.after(60))
def test_first(pg_conn, tmp_path):
    pg_conn.execute("create table t (i int)")
    here = pathlib.Path(__file__).parent
    (tmp_path / "mine").touch()
    (here / "first").touch()
    wait_for(here / "second")
    assert not (tmp_path / "mine").exists(), "the second run did not wipe the shared basetemp"
    assert pg_conn.execute("select count(*) from t").fetchone() == (0,)
def test_second(pg_conn, tmp_path): pg_conn.execute("create table t (i int)")
"""


def test_a_second_run_that_wipes_the_shared_basetemp_takes_no_server_along(project):
    project.write(test_a=BASETEMP)
    base = ("--basetemp", str(project.folder / "base"))
    with project.running("-k", "first", *base) as first:
        until("the first run in its test", lambda: (project.folder / "first").exists(), seconds=60)
        second = project.run("-k", "second", *base)
        (project.folder / "second").touch()
        assert [first.wait(90), second.code] == [0, 0], second.out
    project.wait_clean()


def test_what_cannot_be_cleaned_turns_the_run_red_and_is_listed(project):
    """A folder inside the run's data that even its owner cannot remove: a mount."""
    project.write(
        test_a="""
        import os, subprocess, pytest
        def test_a(pg_conn, pg_server):
            data = pg_conn.execute("show data_directory").fetchone()[0]
            os.mkdir(data + "/stuck")
            if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", data + "/stuck"]).returncode: pytest.skip("no mounts here")
            open(os.environ["SERVERS"], "w").write(data + "/stuck")
        """
    )
    result = run_many(project)
    path = project.folder / "servers"
    if not path.exists():
        pytest.skip("mounting is not allowed here")
    try:
        assert result.code == 1, result.out
        assert result.count("passed") == 1
        assert "could not be cleaned up: folder /" in result.out
        (command,) = re.findall(r"^remove what is left: harness (reap --run \w+)$", result.out, re.M)
    finally:
        subprocess.run(["umount", path.read_text()], check=True)
    line = [sys.executable, "-m", "harness", *command.split()]
    reap = subprocess.run(line, env=project.env(), capture_output=True, text=True, check=False)
    assert reap.returncode == 0, reap.stderr
    assert project.residue() == []
