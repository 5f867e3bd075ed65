from __future__ import annotations

import os
import stat

import pytest

from pgshare import child
from pgshare.errors import RefusedError, SettingError
from pgshare.reaper import read_marker
from pgshare.run import SOCKET_FOLDER_LIMIT, Run, cache_folder, ensure_private, state_root


def test_ids_and_names_are_ours_alone_short_and_ascii(tmp_path):
    first, second = Run.new(str(tmp_path)), Run.new(str(tmp_path))
    assert first.id != second.id
    assert first.id.partition("_")[0] == second.id.partition("_")[0]  # the checkout
    assert Run.new(str(tmp_path), checkout="/elsewhere").id.partition("_")[0] != first.id.partition("_")[0]
    names = {first.name() for _ in range(50)} | {first.name("db") for _ in range(50)}
    assert len(names) == 100
    assert all(name.startswith(f"pgshare_{first.id}_") and len(name) <= 63 and name.isascii() for name in names)


def test_the_random_part_does_not_come_from_the_seeded_generator():
    import random

    ids = []
    for _ in range(2):
        random.seed(1)
        ids.append(Run.new().id)
    assert ids[0] != ids[1]


def test_making_a_run_touches_nothing(tmp_path):
    Run.new(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_worker_gets_the_controllers_run(tmp_path):
    run = Run.new(str(tmp_path))
    handed = Run.from_workerinput(run.to_workerinput(), "gw3")
    assert (handed.id, handed.folder, handed.sockets, handed.controller) == (run.id, run.folder, run.sockets, run.controller)
    assert handed.controller == child.identity(os.getpid())
    assert handed.name().startswith(f"pgshare_{run.id}_gw3_")


def test_folders_are_private_marked_and_signed(tmp_path):
    run = Run.new(str(tmp_path))
    run.make_folders()
    run.make_folders()  # the second worker
    mode = 0o711 if os.geteuid() == 0 else 0o700
    assert stat.S_IMODE(os.stat(run.folder).st_mode) == mode
    assert read_marker(run.folder) == run.id
    with open(os.path.join(run.folder, "owner")) as file:
        assert file.read().splitlines()[1] == str(os.getpid())


@pytest.mark.parametrize("name", ["x" * 100, "é" * 60])
def test_a_long_state_folder_gets_a_short_place_for_sockets_alone(tmp_path, name):
    run = Run.new(str(tmp_path / name))
    assert len(os.fsencode(run.sockets)) + 2 <= SOCKET_FOLDER_LIMIT
    assert run.folder.startswith(str(tmp_path / name))
    assert run.sockets.startswith(f"/var/tmp/pgshare-{os.geteuid()}/s/")


def test_the_state_folder_is_the_setting_else_per_user(monkeypatch):
    assert state_root("/x/y", {}) == "/x/y"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert state_root(None, {"HOME": "/root"}) == "/var/tmp/pgshare-0"
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    for env in ({}, {"HOME": "/nonexistent"}, {"HOME": "/root"}, {"XDG_STATE_HOME": "relative"}):
        assert state_root(None, env) == "/var/tmp/pgshare-12345"


def test_a_user_with_a_home_keeps_state_there(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    os.chown(tmp_path, 12345, -1) if os.getuid() == 0 else monkeypatch.setattr(os, "geteuid", os.getuid)
    if os.geteuid() != 0:
        assert state_root(None, {"HOME": str(tmp_path)}) == f"{tmp_path}/.local/state/pgshare"
        assert state_root(None, {"XDG_STATE_HOME": str(tmp_path)}) == f"{tmp_path}/pgshare"


def test_a_linked_or_writable_folder_is_refused(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("open", "link"):
        with pytest.raises(RefusedError, match="is a link, not ours, or writable by others"):
            ensure_private(str(tmp_path / name), 0o700)


def test_a_state_folder_that_cannot_be_made_is_a_setting_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SettingError, match="for runs and caches: .*; set PGSHARE_STATE_DIR to a folder of yours"):
        cache_folder(str(tmp_path / "file" / "below"), {})


@pytest.mark.parametrize("use", [lambda top: Run.new(top).make_folders(), lambda top: cache_folder(top, {})], ids=["run", "cache"])
def test_a_state_folder_that_takes_nothing_is_a_setting_error(tmp_path, monkeypatch, use):
    real = os.mkdir

    def read_only(path, *args, **names):
        if str(path).startswith(f"{tmp_path}/"):
            raise OSError(30, "Read-only file system", path)
        return real(path, *args, **names)

    monkeypatch.setattr(os, "mkdir", read_only)
    with pytest.raises(SettingError, match="cannot use .* for runs and caches: Read-only file system; set PGSHARE_STATE_DIR"):
        use(str(tmp_path))
