"""Collecting, listing and unit tests touch nothing: every act of the process is watched, and none is ours."""

from __future__ import annotations

import os

import pytest

from pgshare.ports import free_ports

# Writes down every process, connection, lock and changed file that has a frame of ours in its stack.
AUDITOR = """
import os, sys
ACTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system", "socket.connect", "socket.bind",
        "fcntl.flock", "fcntl.lockf", "os.mkdir", "os.rename", "os.remove", "os.link", "os.symlink", "os.chmod", "os.truncate")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
LOG = open(os.environ["AUDIT"], "a", buffering=1)
def hook(event, args):
    if event not in ACTS and not (event == "open" and isinstance(args[2], int) and args[2] & WRITES):
        return
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] in ("pgshare", "harness"):
            LOG.write(f"{event} {args[:2]} in {frame.f_globals['__name__']}\\n")
            return
        frame = frame.f_back
sys.addaudithook(hook)
"""
TESTS = """
def test_live(pg_conn, pg_dsn, pg_database, pg_server): pass
def test_plain(): pass
"""


def run_watched(project, *args, **env):
    project.write(test_a=TESTS, auditor=AUDITOR)
    log = project.folder / "audit.log"
    log.write_text("")
    result = project.run("-p", "auditor", *args, AUDIT=str(log), PYTHONPATH=str(project.folder), PYTHONDONTWRITEBYTECODE="1", **env)
    return result, log.read_text().splitlines()


@pytest.mark.parametrize(
    "args",
    [
        ("--collect-only",),
        ("--fixtures",),
        ("--markers",),
        ("--help",),
        ("--setup-plan",),
        ("-k", "nothing"),
        ("-k", "plain"),
        ("-k", "plain", "-n", "1"),
        ("--collect-only", "--pg-require", "--pg-keep", "always", "--pg-fresh", "--pg-census"),
    ],
    ids=" ".join,
)
def test_what_runs_no_live_test_starts_connects_locks_and_writes_nothing(project, args):
    """Hostile on purpose: an empty PATH, a closed port, a home and a state folder that do not exist and cannot be made."""
    dsn = f"host=127.0.0.1 port={free_ports(1)[0]}"
    nowhere = "/proc/nowhere"
    result, acts = run_watched(project, *args, PATH="", PGSHARE_DSN=dsn, HOME=nowhere, PGSHARE_STATE_DIR=nowhere)
    assert result.code in (0, 5), result.out
    assert acts == []


def test_the_watcher_sees_what_a_live_test_does(project):
    result, acts = run_watched(project)
    assert result.code == 0, result.out
    seen = {line.partition(" ")[0] for line in acts}
    assert {"os.posix_spawn", "socket.connect", "open", "fcntl.flock", "os.mkdir"} <= seen


def test_a_run_without_live_tests_makes_no_state_folder(project):
    before = sorted(os.listdir(project.state))
    result, _ = run_watched(project, "-k", "plain")
    assert result.code == 0, result.out
    assert sorted(os.listdir(project.state)) == before
