"""Folders that are odd, full, or of a user without a name."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile

import psycopg
import pytest

import pgshare
from pgshare import initdb
from pgshare.binaries import find_binaries
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
    from pgshare.account import current_account
    from pgshare.binaries import readable_copy
    from pgshare.deadline import Deadline

    cache, account = f"{state_dir}/cache", current_account()
    found = readable_copy(find_binaries(None, os.environ, cache), account, cache)
    return initdb.ensure_template(found, account, cache, fresh=False, deadline=Deadline.after(60)).pack
