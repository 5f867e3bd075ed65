from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from pgshare.deadline import Deadline
from pgshare.errors import NotReadyError
from pgshare.lock import FileLock

HOLDER = (
    "import sys; from pgshare.lock import FileLock; from pgshare.deadline import Deadline\n"
    "with FileLock(sys.argv[1], Deadline.after(30)):\n"
    "    print('held', flush=True); sys.stdin.read()\n"
)


@pytest.fixture
def holder(tmp_path):
    path = str(tmp_path / "lock")
    with subprocess.Popen([sys.executable, "-c", HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        yield path, process
        process.kill()


def test_a_bounded_wait_names_the_holder(holder):
    path, process = holder
    with pytest.raises(NotReadyError, match=f"last seen: held by pid {process.pid}$"), FileLock(path, Deadline.after(0.2)):
        pass


def test_the_kernel_releases_when_the_holder_is_killed(holder):
    path, process = holder
    process.kill()
    with FileLock(path, Deadline.after(20)):
        assert os.path.exists(path)
    assert os.path.exists(path)  # never unlinked: others may wait on this inode


def test_a_forked_child_does_not_keep_it(tmp_path):
    path = str(tmp_path / "lock")
    code = (
        "import os, sys; from pgshare.lock import FileLock; from pgshare.deadline import Deadline\n"
        "with FileLock(sys.argv[1], Deadline.after(30)):\n"
        "    pid = os.fork()\n"
        "    if pid == 0: sys.stdin.read(); os._exit(0)\n"
        "print('released', flush=True); sys.stdin.read(); os.waitpid(pid, 0)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"released\n"
        with FileLock(path, Deadline.after(20)):
            pass
        process.stdin.close()


def test_one_holder_at_a_time(tmp_path):
    path, inside, most = str(tmp_path / "lock"), [], []

    def work():
        for _ in range(30):
            with FileLock(path, Deadline.after(60)):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert max(most) == 1
    assert len(most) == 120
