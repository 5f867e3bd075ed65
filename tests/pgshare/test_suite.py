from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile

import psycopg
import pytest

import pgshare
from pgshare import conninfo, suite
from pgshare.errors import OriginUnavailableError, ServerStartError, SettingError
from pgshare.ports import free_ports
from pgshare.settings import Settings

IS_ROOT = os.geteuid() == 0


@pytest.fixture
def place():
    """A folder that an unprivileged server can enter."""
    folder = tempfile.mkdtemp(prefix="pgsu", dir="/var/tmp")
    os.chmod(folder, 0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def _own_state(state_dir, monkeypatch):
    monkeypatch.setenv("PGSHARE_STATE_DIR", state_dir)
    yield
    assert os.listdir(os.path.join(state_dir, "runs")) == [] if os.path.isdir(os.path.join(state_dir, "runs")) else True


def fakes(place, postgres="exit 0", initdb="exit 0"):
    """A folder with programs that do what the test says."""
    folder = os.path.join(place, "bin")
    os.makedirs(folder)
    for name, body in (("postgres", postgres), ("initdb", initdb)):
        path = os.path.join(folder, name)
        with open(path, "w") as file:
            file.write(f"#!/bin/sh\n[ \"$1\" = --version ] && echo 'postgres (PostgreSQL) 17.1' && exit 0\n{body}\n")
        os.chmod(path, 0o755)
    return folder


def real_data(place, postgres):
    """Programs whose initdb works (the real one) and whose postgres does what the test says."""
    from pgshare.binaries import find_binaries

    real = find_binaries(None, os.environ, os.path.join(os.environ["PGSHARE_STATE_DIR"], "cache"))
    single = f'[ "$1" = --single ] && exec {real.path("postgres")} "$@"'
    return fakes(place, f"{single}\n{postgres}", f'exec {real.path("initdb")} "$@"')


def test_a_server_runs_in_the_given_folders_and_stop_ends_it(place):
    dsn, stop = pgshare.start_suite_postgres(f"{place}/state", f"{place}/sock")
    assert conninfo.parse(dsn, name="x")["host"].startswith(f"{place}/sock/")
    with psycopg.connect(dsn) as conn:
        data = conn.execute("show data_directory").fetchone()[0]
        assert conn.execute("select setting from pg_settings where name = 'listen_addresses'").fetchone() == ("",)
    assert data.startswith(f"{place}/state/")
    stop()
    stop()  # idempotent
    assert os.listdir(f"{place}/state") == os.listdir(f"{place}/sock") == []


def test_with_a_port_it_also_listens_there(place):
    (port,) = free_ports(1)
    dsn, stop = pgshare.start_suite_postgres(place, place, port)
    over_tcp = conninfo.build({**conninfo.parse(dsn, name="x"), "host": "127.0.0.1"})
    with psycopg.connect(over_tcp) as conn:
        assert conn.execute("show port").fetchone() == (str(port),)
    stop()


def test_the_password_is_random_and_needed(place):
    with pgshare.suite_postgres() as first, pgshare.suite_postgres() as second:
        passwords = {conninfo.parse(server.dsn, name="x")["password"] for server in (first, second)}
        assert len(passwords) == 2
        for wrong in ("", "postgres"):
            with pytest.raises(psycopg.OperationalError, match=r"password"):
                psycopg.connect(first.dsn, password=wrong, passfile="/dev/null")
        with psycopg.connect(first.dsn) as conn:
            stored = conn.execute("select rolpassword from pg_authid where rolname = 'postgres'").fetchone()[0]
            assert stored.startswith("SCRAM-SHA-256$1:")
        log = subprocess.run(["grep", "-r", passwords.pop(), os.environ["PGSHARE_STATE_DIR"]], capture_output=True, check=False)
        assert log.returncode == 1  # in no file and no log


def test_a_port_that_is_taken_is_named_with_the_servers_words(place):
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        port = squatter.getsockname()[1]
        with pytest.raises(ServerStartError) as caught:
            pgshare.start_suite_postgres(place, place, port)
    assert str(caught.value).startswith("postgres ended with status 1 before it was ready\n")
    assert f"Is another postmaster already running on port {port}?" in caught.value.log_tail


def test_no_binaries(place):
    with (
        pytest.raises(SettingError, match="PGSHARE_BIN='/nowhere' has no postgres and no initdb"),
        pgshare.suite_postgres(settings=Settings(bin="/nowhere", state_dir=os.environ["PGSHARE_STATE_DIR"])),
    ):
        pass
    assert issubclass(OriginUnavailableError, pgshare.PgshareError)


def start(bin_dir, **options):
    with pgshare.suite_postgres(settings=Settings(bin=bin_dir, state_dir=os.environ["PGSHARE_STATE_DIR"]), **options) as found:
        return found


def test_initdb_that_fails_says_its_own_words(place):
    with pytest.raises(ServerStartError, match="initdb ended with status 3\nthe disk is on fire"):
        start(fakes(place, initdb="echo the disk is on fire; exit 3"))
    cache = os.path.join(os.environ["PGSHARE_STATE_DIR"], "cache")
    assert not [name for name in os.listdir(cache) if name.startswith("making-")]


def test_a_server_that_dies_while_starting_fails_at_once_with_its_last_lines(place):
    with pytest.raises(ServerStartError, match="postgres ended with status 7 before it was ready") as caught:
        start(real_data(place, "echo last words >&2; exit 7"))
    assert (caught.value.returncode, caught.value.log_tail) == (7, "last words")


def test_a_server_that_is_never_ready_is_stopped_when_the_budget_ends(place):
    marker = f"{place}/bin/up"
    with pytest.raises(ServerStartError, match=r"postgres was not ready after"):
        start(real_data(place, f"echo $$ > {marker}; exec sleep 600"), timeout=3.0)  # the limit is the subject
    if os.path.exists(marker):
        with open(marker) as file:
            pid = int(file.read())
        assert not os.path.exists(f"/proc/{pid}")


def test_a_server_that_ignores_the_polite_signal_is_killed(place, monkeypatch):
    real = suite.component
    monkeypatch.setattr(
        suite, "component", lambda *args, **options: {**real(*args, **options), "stop": [["INT", 0.2], ["KILL", 10.0]]}
    )
    with pytest.raises(ServerStartError, match="was not ready"):
        start(real_data(place, "trap '' INT; while :; do sleep 0.05; done"), timeout=3.0)


def test_stopping_a_server_that_is_already_dead_is_success(place):
    with pgshare.suite_postgres() as server:
        os.kill(server.pid, 9)


@pytest.mark.parametrize("name", ["state_dir", "socket_dir"])
@pytest.mark.skipif(not IS_ROOT, reason="only root gives its privileges up")
def test_a_folder_that_the_servers_user_cannot_enter_is_named(place, name):
    private = f"{place}/private"
    os.mkdir(private, 0o700)
    folders = {"state_dir": place, "socket_dir": place, name: f"{private}/x"}
    with pytest.raises(
        SettingError, match=f"{name}='{private}/x' cannot be entered by '(postgres|nobody)', the user that the server runs as"
    ):
        pgshare.start_suite_postgres(**folders)


@pytest.mark.parametrize("folder", ["x" * 90, "é" * 45])
def test_a_socket_folder_that_is_too_long_is_refused_before_anything_is_made(place, folder):
    with pytest.raises(SettingError, match=r"socket_dir: .* has \d+ bytes, a socket's folder may have 86; choose a shorter one"):
        pgshare.start_suite_postgres(place, f"{place}/{folder}")
    assert not os.listdir(f"{place}/{folder}")


def test_a_folder_that_cannot_be_made_is_named(place):
    with open(f"{place}/file", "w"):
        pass
    with pytest.raises(SettingError, match="state_dir='.*/file/x' cannot be made: Not a directory"):
        pgshare.start_suite_postgres(f"{place}/file/x", place)


HOSTILE = {
    "PGUSER": "x", "PGDATABASE": "y", "PGHOST": "z.invalid", "PGHOSTADDR": "192.0.2.1", "PGPORT": "1", "PGSERVICE": "s", "PGSSLMODE": "verify-full",
    "PGOPTIONS": "-c search_path=nope", "PGDATA": "/nowhere", "PGREQUIREAUTH": "none", "PGCHANNELBINDING": "require",
    "PGTARGETSESSIONATTRS": "standby", "LC_ALL": "xx_YY.UTF-8", "LANG": "xx_YY.UTF-8", "TMPDIR": "/tmp/" + "t" * 95,
}  # fmt: skip
CODE = (
    "import pgshare\n"
    "with pgshare.suite_postgres() as server:\n"
    "    with pgshare.isolated_schema(server.dsn) if not __import__('os').environ.get('PGHOST') else __import__('contextlib').nullcontext() as s:\n"
    "        import psycopg; from pgshare.scrub import without_pg_variables\n"
    "        with without_pg_variables(), psycopg.connect(server.dsn) as conn:\n"
    "            print(conn.execute(\"select current_setting('server_encoding'), datcollate from pg_database where datname = current_database()\").fetchone())\n"
)


@pytest.mark.parametrize(
    "env", [HOSTILE, {}, {"LC_ALL": "xx_YY.UTF-8"}, {"TMPDIR": "/tmp/é" + "ü" * 45}], ids=["pg", "empty", "locale", "letters"]
)
def test_a_hostile_or_empty_environment_does_not_reach_the_server(env, state_dir):
    cold = state_dir + "/cold"
    full = {"PATH": os.environ["PATH"], "PGSHARE_STATE_DIR": cold, **env}
    done = subprocess.run([sys.executable, "-c", CODE], env=full, capture_output=True, text=True, check=False)
    assert done.stdout in ("('UTF8', 'C.UTF-8')\n", "('UTF8', 'C')\n"), done.stderr


@pytest.mark.skipif(not IS_ROOT, reason="needs root to become a uid without a name")
def test_a_uid_without_a_name_works_or_is_told_the_ways_out(place):
    state = f"{place}/s"
    os.mkdir(state, 0o700)
    os.chown(state, 65530, 65530)
    code = "import pgshare\nwith pgshare.suite_postgres() as s: print('up', s.version)"
    done = subprocess.run(
        ["/usr/bin/env", "-i", f"PATH={os.environ['PATH']}", f"PGSHARE_STATE_DIR={state}", f"PYTHONPATH={':'.join(readable(place))}", python(), "-c", code],
        user=65530, group=65530, extra_groups=[], capture_output=True, text=True, check=False, cwd="/",
    )  # fmt: skip
    ways_out = "uid 65530 has no name on this machine and initdb wants one; set PGSHARE_DSN to a server"
    assert done.stdout.startswith("up ") or ways_out in done.stderr, done.stderr


def python():
    """An interpreter that every user can run."""
    return (
        os.path.realpath(sys.executable)
        if os.access("/root", os.X_OK)
        and not sys.executable.startswith("/root")
        and not os.path.realpath(sys.executable).startswith("/root")
        else "/usr/bin/python3"
    )


def readable(place):
    """What the child imports, where every user can read it."""
    import importlib.util

    copied = f"{place}/site"
    for name in ("pgshare", "psycopg", "psycopg_binary", "filelock", "typing_extensions", "psycopg_binary.libs"):
        spec = importlib.util.find_spec(name) if "." not in name else None
        if spec is None or spec.origin is None:
            continue
        if spec.origin.endswith("__init__.py"):
            shutil.copytree(os.path.dirname(spec.origin), f"{copied}/{name}", ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(spec.origin, copied)
        libs = os.path.join(os.path.dirname(os.path.dirname(spec.origin)), f"{name}.libs")
        if os.path.isdir(libs):
            shutil.copytree(libs, f"{copied}/{name}.libs")
    subprocess.run(["chmod", "-R", "a+rX", copied], check=True)
    return [copied]


@pytest.mark.skipif(not IS_ROOT, reason="needs root to mount a small file system")
def test_out_of_space_is_named_with_path_and_free_bytes(place):
    small = f"{place}/small"
    os.mkdir(small)
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=20m,mode=711", "tmpfs", small], check=False, capture_output=True
    ).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        with (
            pytest.raises(ServerStartError, match=rf"\d+ MiB \(\d+ bytes\) are free at {small}"),
            pgshare.suite_postgres(settings=Settings(bin=find(), state_dir=f"{small}/state")),
        ):
            pass
    finally:
        subprocess.run(["umount", small], check=True)


def find():
    from pgshare.binaries import find_binaries

    return find_binaries(None, os.environ, os.path.join(os.environ["PGSHARE_STATE_DIR"], "cache")).bin_dir


@pytest.mark.skipif(not IS_ROOT, reason="only root gives its privileges up")
def test_a_state_folder_that_the_servers_user_cannot_enter_is_named(place):
    os.mkdir(f"{place}/private", 0o700)
    with (
        pytest.raises(SettingError, match=f"PGSHARE_STATE_DIR='{place}/private/state' cannot be entered by '(postgres|nobody)'"),
        pgshare.suite_postgres(settings=Settings(state_dir=f"{place}/private/state", sources={"state_dir": "PGSHARE_STATE_DIR"})),
    ):
        pass
