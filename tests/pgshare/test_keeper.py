from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading

import psycopg
import pytest
from projects import until

from pgshare import child, lease, runs, suite
from pgshare.deadline import Deadline
from pgshare.errors import KeeperError
from pgshare.inventory import Inventory
from pgshare.run import Run
from pgshare.settings import Settings


@pytest.fixture
def run(state_dir):
    made = Run.new(state_dir)
    yield made
    found = lease.connect(made)
    if found is not None:
        found.end()


def shared(run):
    return suite.shared_postgres(run, Settings(state_dir=os.path.dirname(os.path.dirname(run.folder))))


def test_processes_and_threads_that_ask_at_once_get_one_server(run):
    servers, barrier = [], threading.Barrier(6)

    def ask():
        barrier.wait(60)
        servers.append(shared(run))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len({server.pid for server, _ in servers}) == 1
    assert len({server.dsn for server, _ in servers}) == 1
    assert sum(server.started_here for server, _ in servers) == 1
    for _, held in servers[1:]:
        held.close()
    with psycopg.connect(servers[0][0].dsn) as conn:  # the others' leaving did not stop it
        assert conn.execute("select 1").fetchone() == (1,)
    assert servers[0][1].leave() == []


def test_leaving_returns_when_all_is_gone(run):
    server, held = shared(run)
    status = held.status()
    who = [child.identity(pid) for pid in (server.pid, status["pid"])]
    folders = status["components"][0]["dirs"]
    assert all(os.path.isdir(folder) for folder in folders)
    assert held.leave() == []
    assert not any(os.path.exists(folder) for folder in [*folders, run.folder])
    assert all(child.is_alive(identity) is False for identity in who)


def test_what_is_held_is_on_disk_before_it_is_ready(run):
    server, held = shared(run)
    rows = Inventory(run.folder, run_id=run.id).rows()
    assert [(row["kind"], row["state"]) for row in rows] == [("dir", "intended"), ("dir", "intended"), ("process", "created")]
    assert rows[2]["identity"]["pid"] == server.pid
    assert rows[2]["owner"]["pid"] == held.status()["pid"]
    held.leave()


def test_the_proof_passes_to_the_next_when_the_first_one_dies(run):
    settings = Settings(state_dir=os.path.dirname(os.path.dirname(run.folder)))
    first = lease.join(run)
    first.start(suite.build_component(run, settings, os.environ, Deadline.after(60)))
    assert first.receive(Deadline.after(60))["state"] == "verify"
    second = lease.join(run)
    second.start({"name": "postgres"})
    first.close()  # dead before it confirmed
    assert second.receive(Deadline.after(60))["state"] == "verify"
    assert second.leave() == []


def test_the_run_ends_with_its_controller_whatever_the_workers_hold(state_dir):
    code = (
        "import os, sys; from pgshare import suite; from pgshare.run import Run; from pgshare.settings import Settings\n"
        "run = Run.new(sys.argv[1]); server, held = suite.shared_postgres(run, Settings(state_dir=sys.argv[1]))\n"
        "print(run.id, server.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, state_dir], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as controller:
        run_id, pid = controller.stdout.readline().split()
        who = child.identity(int(pid))
        (found,) = runs.find_runs(state_dir)
        assert (found.run.id, found.state) == (run_id, runs.ALIVE)
        worker = lease.connect(found.run)  # a worker that outlives its controller
        controller.kill()
        until("the end of the run", lambda: not os.path.exists(found.run.folder))
        assert child.is_alive(who) is False
        worker.close()


def test_a_forked_child_that_inherits_the_lease_does_not_hold_it(run):
    _, held = shared(run)
    before = len(held.status()["leases"])
    other = lease.connect(run)
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    try:
        other.close()
        until("one lease less", lambda: len(held.status()["leases"]) == before)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    held.leave()


@pytest.mark.parametrize("also_sweeper", [False, True])
def test_a_killed_keeper_takes_its_server_along(run, also_sweeper):
    server, held = shared(run)
    status = held.status()
    keeper, postmaster = child.identity(status["pid"]), child.identity(server.pid)
    sweeper = [pid for pid in child.children_of(keeper[1]) if pid != server.pid]
    assert len(sweeper) == 1
    busy = psycopg.connect(server.dsn, autocommit=True)
    backend = child.identity(busy.info.backend_pid)

    def query():
        with contextlib.suppress(psycopg.Error):
            busy.execute("select pg_sleep(600)")

    thread = threading.Thread(target=query)
    thread.start()
    if also_sweeper:
        os.kill(sweeper[0], signal.SIGKILL)
    os.kill(keeper[1], signal.SIGKILL)
    thread.join(20)
    busy.close()
    for who in (postmaster, backend):
        assert child.wait_gone(who, 20)
    if also_sweeper:  # no signal removes a folder: the next run does
        assert os.path.exists(run.folder)
        dead = Run(id=run.id, folder=run.folder, sockets=run.sockets, controller=("gone/pid:[1]", 2, 3))
        dead._write_owner()
        assert runs.recover_dead(os.path.dirname(os.path.dirname(run.folder))) == []
    until("an empty state folder", lambda: not os.path.exists(run.folder))
    assert not any(os.path.exists(folder) for folder in status["components"][0]["dirs"])
    with pytest.raises(KeeperError, match=f"the process that owns this run's servers does not answer .*its log: {run.keeper_log}"):
        held.status()
    held.close()


def segments_of(pid):
    with open("/proc/sysvipc/shm") as file:
        return [line for line in file if line.split()[4] == str(pid)]


def test_a_server_killed_hard_leaves_no_process_segment_or_folder(run):
    server, held = shared(run)
    status = held.status()
    with psycopg.connect(server.dsn) as conn:
        children = [child.identity(pid) for pid in child.children_of(server.pid)]
        assert len(children) > 3
        conn.execute("select 1")
    os.kill(server.pid, signal.SIGKILL)
    for who in children:
        assert child.wait_gone(who, 20)
    until("the end of its segment", lambda: not segments_of(server.pid))
    assert held.leave() == []
    assert not any(os.path.exists(folder) for folder in status["components"][0]["dirs"])


def test_a_kept_run_stays_until_it_is_ended(run, state_dir):
    server, held = shared(run)
    assert held.leave(keep=300) == []
    (found,) = runs.find_runs(state_dir)
    assert found.state == runs.KEPT_ALIVE
    with psycopg.connect(server.dsn) as conn:
        assert conn.execute("select 1").fetchone() == (1,)
    assert runs.recover_dead(state_dir) == []
    assert runs.end_kept(found.run) == []
    assert not os.path.exists(run.folder)


def test_a_kept_run_ends_by_itself(run):
    _, held = shared(run)
    assert held.leave(keep=0.05) == []
    until("the end of the kept run", lambda: not os.path.exists(run.folder))


def test_nonsense_on_the_socket_ends_that_connection_alone(run):
    _, held = shared(run)
    with socket.socket(socket.AF_UNIX) as conn:
        conn.connect(run.keeper_socket)
        conn.settimeout(20)
        conn.sendall(b"\xff\xff\xff\xffGET / HTTP/1.1\r\n")
        assert conn.recv(10) == b""
    held.send({"op": "dance"})
    assert held.receive(Deadline.after(20))["error"] == "unknown request 'dance'"
    assert held.leave() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_another_users_process_is_not_served(run):
    _, held = shared(run)
    for path in (os.path.dirname(os.path.dirname(run.folder)), os.path.dirname(run.folder), run.folder):
        os.chmod(path, 0o755)
    os.chmod(run.keeper_socket, 0o666)
    code = (
        f"import socket; s = socket.socket(socket.AF_UNIX); s.settimeout(20); s.connect({run.keeper_socket!r}); print(s.recv(10))"
    )
    done = subprocess.run(
        ["/usr/bin/python3", "-c", code], user=65534, group=65534, extra_groups=[], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "b''", done.stderr
    assert held.leave() == []


def test_an_idle_keeper_uses_no_processor_time(run):
    """Every event that nobody takes would wake its loop for ever."""
    server, held = shared(run)
    keeper = held.status()["pid"]
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute("create table busy as select generate_series(1, 20000); checkpoint")

        def ticks():
            with open(f"/proc/{keeper}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
            return int(fields[11]) + int(fields[12])

        before = ticks()
        conn.execute("select pg_sleep(1)")  # the server passes the time; nothing here does
        assert ticks() - before <= 5  # of 100 in a second
    held.leave()


def test_the_short_folder_for_sockets_goes_with_a_killed_keeper(state_dir):
    """Where the run's own path is too long for a socket."""
    long = os.path.join(state_dir, "x" * 90)
    run = Run.new(long)
    server, held = suite.shared_postgres(run, Settings(state_dir=long))
    assert run.sockets != run.folder
    assert os.path.isdir(run.sockets)
    os.kill(held.status()["pid"], signal.SIGKILL)
    until("the end of both folders", lambda: not os.path.exists(run.folder) and not os.path.exists(run.sockets))
    held.close()
    assert server.pid
