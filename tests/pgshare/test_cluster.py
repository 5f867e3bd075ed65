from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

import psycopg
import pytest

import pgshare
from pgshare import cluster, conninfo, initdb, lease, suite
from pgshare.account import current_account
from pgshare.binaries import find_binaries, list_binaries
from pgshare.deadline import Deadline
from pgshare.errors import ServerStartError
from pgshare.run import Run
from pgshare.settings import Settings


@pytest.fixture
def cold(state_dir):
    """An empty cache."""
    folder = os.path.join(state_dir, "cold")
    os.mkdir(folder, 0o711)
    return folder


def binaries(cache):
    return find_binaries(None, os.environ, cache)


def prepare(cache, *, fresh=False):
    return initdb.ensure_template(binaries(cache), current_account(), cache, fresh=fresh, deadline=Deadline.after(60))


def test_initdb_runs_once_per_cache_and_again_when_asked(cold):
    first = prepare(cold)
    assert first.took > 0
    second = prepare(cold)
    assert (second.took, second.pack, second.password) == (0.0, first.pack, first.password)
    third = prepare(cold, fresh=True)
    assert third.took > 0
    assert third.password == first.password
    assert [
        oct(os.stat(os.path.join(cold, name)).st_mode & 0o777) for name in os.listdir(cold) if "pack" in name and "lock" not in name
    ] == ["0o600"] * 2


def test_several_processes_make_one(cold):
    code = (
        "import os, sys; from pgshare import initdb; from pgshare.account import current_account\n"
        "from pgshare.binaries import find_binaries; from pgshare.deadline import Deadline\n"
        "b = find_binaries(None, os.environ, sys.argv[1])\n"
        "print(initdb.ensure_template(b, current_account(), sys.argv[1], fresh=False, deadline=Deadline.after(60)).password)\n"
    )
    makers = [subprocess.Popen([sys.executable, "-c", code, cold], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    passwords = {maker.communicate(timeout=90)[0] for maker in makers}
    assert len(passwords) == 1
    assert len(passwords.pop()) == 33


def test_a_maker_that_is_killed_half_way_leaves_nothing_that_is_used(cold):
    code = (
        "import os, sys; from pgshare import datadir, initdb; from pgshare.account import current_account\n"
        "from pgshare.binaries import find_binaries; from pgshare.deadline import Deadline\n"
        "def stuck(folder, out):\n"
        "    open(out, 'w').write('half'); print('half', flush=True); sys.stdin.read()\n"
        "datadir.pack = stuck\n"
        "b = find_binaries(None, os.environ, sys.argv[1])\n"
        "initdb.ensure_template(b, current_account(), sys.argv[1], fresh=False, deadline=Deadline.after(60))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, cold], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as maker:
        assert maker.stdout.readline() == b"half\n"
        maker.kill()
    assert any(name.startswith("making-") for name in os.listdir(cold))
    assert prepare(cold).took > 0
    assert not any(name.startswith("making-") for name in os.listdir(cold))


def test_a_damaged_pack_is_made_again(cold):
    first = prepare(cold)
    with open(first.pack, "r+b") as file:
        file.truncate(100_000)
    assert prepare(cold).took > 0


def test_the_key_changes_with_the_binaries(cold):
    found = list_binaries(os.environ, cold)
    assert len({item.key for item in found}) == len(found)


def test_the_command_line_is_for_throwaway_data(cold):
    argv = cluster.server_command(
        binaries(cold), "/d", "/s", port=5432, tcp=False, nonce="n", extra={"fsync": "on", "work_mem": "8MB"}
    )
    settings = dict(part.split("=", 1) for part in argv[3:] if part != "-c")
    assert settings["fsync"] == "on"  # extra settings win
    assert settings["work_mem"] == "8MB"
    assert settings["listen_addresses"] == ""
    assert settings["unix_socket_permissions"] == "0700"
    assert settings["pgshare.nonce"] == "n"
    assert settings["dynamic_shared_memory_type"] == "mmap"


def test_the_verifier_is_the_one_that_the_server_makes(own_server):
    verifier = cluster.scram_verifier("0123abcd")
    with psycopg.connect(own_server.dsn, autocommit=True) as admin:
        admin.execute(psycopg.sql.SQL("create role verified login password {}").format(psycopg.sql.Literal(verifier)))
        try:
            assert admin.execute("select rolpassword from pg_authid where rolname = 'verified'").fetchone() == (verifier,)
            dsn = conninfo.build({**conninfo.parse(own_server.dsn, name="x"), "user": "verified", "password": "0123abcd"})
            psycopg.connect(dsn).close()
        finally:
            admin.execute("drop role verified")


def test_another_server_on_our_address_is_not_taken_for_ours(own_server):
    """A squatter that speaks Postgres, and even knows the password."""
    parts = conninfo.parse(own_server.dsn, name="x")
    facts = {**parts, "template_password": parts["password"], "nonce": "not its nonce", "data": "/ours"}
    with pytest.raises(ServerStartError, match="another server than ours answers at .*: its data lies in "):
        cluster.verify(facts, pid=1, deadline=Deadline.after(30))
    with pytest.raises(ServerStartError, match="another server than ours answers at .*password authentication failed"):
        cluster.verify({**facts, "template_password": "wrong", "password": "wrong"}, pid=1, deadline=Deadline.after(30))


def test_a_proof_that_died_after_setting_the_password_can_be_made_again(state_dir):
    run = Run.new(state_dir)
    held = lease.join(run)
    held.start(suite.build_component(run, Settings(state_dir=state_dir), os.environ, Deadline.after(60)))
    reply = held.receive(Deadline.after(60))
    for _ in range(2):
        found, conn = cluster.verify(reply["facts"], pid=reply["pid"], deadline=Deadline.after(30))
        conn.close()
        assert found["version_num"] >= 140000
    assert held.leave() == []


def test_a_port_lost_between_look_and_bind_is_tried_again_with_another(state_dir, monkeypatch):
    """The first port that is chosen is squatted by somebody else before the server binds it."""
    real, squatters = suite.free_ports, []

    def squatted(count):
        (port,) = real(count)
        if len(squatters) < 2:
            squatters.append(socket.create_server(("127.0.0.1", port)))
        return [port]

    monkeypatch.setattr(suite, "free_ports", squatted)
    run = Run.new(state_dir)
    server, held = suite.shared_postgres(run, Settings(state_dir=state_dir, tcp=True))
    try:
        parts = conninfo.parse(server.dsn, name="x")
        assert parts["host"] == "127.0.0.1"
        assert int(parts["port"]) not in [squatter.getsockname()[1] for squatter in squatters]
        with psycopg.connect(server.dsn) as conn:
            assert conn.execute("show data_directory").fetchone()[0].startswith("/")
    finally:
        assert held.leave() == []
        for squatter in squatters:
            squatter.close()


def test_eight_servers_at_once_do_not_meet(state_dir):
    servers, lock = [], threading.Lock()

    def start():
        with (
            pgshare.suite_postgres(settings=Settings(state_dir=state_dir, tcp=True)) as server,
            psycopg.connect(server.dsn) as conn,
            lock,
        ):
            servers.append(conn.execute("select current_setting('pgshare.nonce')").fetchone()[0])

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert len(set(servers)) == 8


def own_segments():
    with open("/proc/sysvipc/shm") as file:
        return {tuple(line.split()[i] for i in (1, 4)) for line in list(file)[1:]}


def test_twenty_cycles_leave_no_segment_socket_folder_or_process(state_dir):
    pids = set()
    for _ in range(20):
        with pgshare.suite_postgres(settings=Settings(state_dir=state_dir)) as server:
            pids.add(str(server.pid))
            assert any(creator in pids for _, creator in own_segments())
    assert not any(creator in pids for _, creator in own_segments())
    assert os.listdir(os.path.join(state_dir, "runs")) == []
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_the_gate_that_fired_is_reported(each_server):
    assert each_server.gate in ("notify socket", "postmaster.pid")
    assert 0 < each_server.ready_after < 60
    assert each_server.place.startswith(("memory (/dev/shm", "disk ("))


def test_data_lies_on_disk_when_told(state_dir):
    with (
        pgshare.suite_postgres(settings=Settings(state_dir=state_dir, memory="never")) as server,
        psycopg.connect(server.dsn) as conn,
    ):
        data = conn.execute("show data_directory").fetchone()[0]
    assert data.startswith(state_dir)
    assert server.place.startswith("disk (")


def test_a_server_still_starting_is_waited_for_through_the_events_alone(state_dir):
    """No connection is tried before the gate fires: the log has no refused connection."""
    with pgshare.suite_postgres(settings=Settings(state_dir=state_dir)):
        (run,) = os.listdir(os.path.join(state_dir, "runs"))
        with open(os.path.join(state_dir, "runs", run, "postgres.log")) as file:
            text = file.read()
    assert "starting PostgreSQL" in text
    assert "FATAL" not in text


def test_over_tcp_the_password_has_the_iterations_that_every_driver_takes(state_dir):
    run = Run.new(state_dir)
    server, held = suite.shared_postgres(run, Settings(state_dir=state_dir, tcp=True))
    with psycopg.connect(server.dsn) as conn:
        assert conn.execute(
            "select rolpassword like 'SCRAM-SHA-256$4096:%' from pg_authid where rolname = 'postgres'"
        ).fetchone() == (True,)
    assert held.leave() == []
