from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from projects import until

from pgshare import child

SLEEPER = [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"]


@pytest.fixture
def sleeper():
    with subprocess.Popen(SLEEPER, stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_an_identity_is_boot_pid_and_start_time(sleeper):
    who = child.identity(sleeper.pid)
    assert who == (child.boot_id(), sleeper.pid, child.read_stat(sleeper.pid)[2])
    assert child.is_alive(who) is True


def test_a_zombie_is_dead(sleeper):
    who = child.identity(sleeper.pid)
    sleeper.kill()
    until("the end", lambda: child.is_alive(who) is False)  # not yet waited for: a zombie
    assert child.identity(sleeper.pid) is None


def test_a_reused_pid_is_another_process(sleeper):
    boot, pid, start = child.identity(sleeper.pid)
    assert child.is_alive((boot, pid, start + 1)) is False
    assert child.send_signal((boot, pid, start + 1), child.KILL) is False
    assert sleeper.poll() is None


def test_another_boot_is_dead_and_another_namespace_unknown(sleeper):
    boot, pid, start = child.identity(sleeper.pid)
    assert child.is_alive(("other-boot/pid:[1]", pid, start)) is False
    assert child.is_alive((boot.partition("/")[0] + "/pid:[1]", pid, start)) is None
    assert child.is_alive(("unknown", pid, start)) is None
    assert child.send_signal((boot.partition("/")[0] + "/pid:[1]", pid, start), child.KILL) is False


@pytest.mark.parametrize("who", [lambda: 0, lambda: 1, os.getpid, os.getppid], ids=["nobody", "init", "ourselves", "parent"])
def test_init_ourselves_and_ancestors_are_never_signalled(who):
    assert child.may_signal((child.boot_id(), who(), 1)) is False


def test_stop_climbs_the_ladder_until_the_process_is_gone():
    deaf = "import signal, sys; signal.signal(2, signal.SIG_IGN); print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", deaf], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        assert child.stop(child.identity(process.pid), [["INT", 0.2], ["KILL", 10]])
        process.wait()
        assert process.returncode == -9


def test_stopping_what_is_gone_is_success(sleeper):
    who = child.identity(sleeper.pid)
    sleeper.kill()
    sleeper.wait()
    assert child.stop(who, [["INT", 10]])


def test_a_child_that_cannot_be_started_says_why_and_ends_with_127(tmp_path):
    # In a process of its own: spawn is for a single-threaded caller.
    code = (
        "import os, sys; from pgshare import child\n"
        "fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)\n"
        "pid = child.spawn(['/nowhere/postgres'], {}, log_fd=fd)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    log = tmp_path / "log"
    done = subprocess.run([sys.executable, "-c", code, str(log)], capture_output=True, text=True, check=True)
    assert done.stdout == "127\n"
    assert log.read_text().startswith("pgshare: cannot start /nowhere/postgres: FileNotFoundError")


def test_a_spawned_child_has_default_signals_and_dies_with_its_parent(tmp_path):
    """Started as ``cmd &`` or under nohup, a process inherits ignored INT and QUIT; its death signal would be lost."""
    code = (
        "import os, signal, sys; from pgshare import child\n"
        "signal.signal(signal.SIGQUIT, signal.SIG_IGN)\n"
        "fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)\n"
        "pid = child.spawn(['/bin/sleep', '600'], {}, log_fd=fd, death_signal=child.QUIT)\n"
        "print(pid, flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "log")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        pid = int(parent.stdout.readline())
        until("exec", lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
        who = child.identity(pid)
        parent.kill()
        assert child.wait_gone(who, 20)
