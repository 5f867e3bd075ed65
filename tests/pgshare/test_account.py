from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from pgshare import account as accounts
from pgshare.account import Rights, choose_account, current_account, read_rights
from pgshare.errors import ServerStartError

ROOT, POSTGRES, NOBODY, ALICE = (
    ("root", "x", 0, 0),
    ("postgres", "x", 101, 104),
    ("nobody", "x", 65534, 65534),
    ("alice", "x", 1000, 1000),
)


@pytest.mark.parametrize(
    ("passwd", "name"),
    [
        ([ROOT, ALICE, NOBODY, POSTGRES], "postgres"),
        ([ROOT, ALICE, NOBODY], "nobody"),
        ([ROOT, ALICE], "alice"),
        ([("toor", "x", 0, 0), ("postgres", "x", 0, 0), NOBODY], "nobody"),
    ],
)
def test_root_gives_its_privileges_up_to_an_account_that_exists(passwd, name):
    account = choose_account(0, 0, passwd)
    assert (account.name, account.drop) == (name, True)
    assert account.uid != 0
    assert account.for_child == (account.uid, account.gid)


def test_root_without_any_other_account_is_told_the_ways_out():
    with pytest.raises(ServerStartError, match="run the tests as another user, or set PGSHARE_DSN to a server"):
        choose_account(0, 0, [ROOT])


def test_anybody_else_stays_who_they_are_with_or_without_a_name():
    assert choose_account(1000, 1000, [ROOT, ALICE]).name == "alice"
    nameless = choose_account(4711, 42, [ROOT, ALICE])
    assert (nameless.uid, nameless.gid, nameless.name, nameless.drop) == (4711, 42, "", False)
    assert nameless.for_child == (None, None)


def test_this_machine_has_one():
    assert current_account().uid != 0


def test_an_account_that_this_user_namespace_does_not_map_is_passed_over():
    rights = Rights(uids=(range(2000),), gids=(range(2000),))
    assert choose_account(0, 0, [ROOT, NOBODY, ALICE], rights).name == "alice"
    with pytest.raises(ServerStartError, match="no unprivileged account exists that root may become here"):
        choose_account(0, 0, [ROOT, POSTGRES, NOBODY], Rights(uids=(range(1),), gids=(range(1),)))


def test_root_without_its_capabilities_is_told_which_and_the_ways_out():
    with pytest.raises(ServerStartError) as caught:
        choose_account(0, 0, [ROOT, POSTGRES], Rights(missing=("CAP_SETGID", "CAP_SETUID")))
    assert str(caught.value) == (
        "Postgres does not run as root, and this root may not hand it to another user (no CAP_SETGID, CAP_SETUID); run the tests "
        "as another user, or set PGSHARE_DSN to a server"
    )
    assert choose_account(1000, 1000, [ROOT, ALICE], Rights(missing=("CAP_SETUID",))).name == "alice"


def test_rights_are_read_from_the_kernel(tmp_path):
    (tmp_path / "status").write_text("Name:\tx\nCapEff:\t00000000a80425db\n")
    (tmp_path / "uid_map").write_text("         0       1000          1\n         1     100000      65536\n")
    (tmp_path / "gid_map").write_text("0 0 4294967295\n")
    rights = read_rights(str(tmp_path))
    assert rights.missing == ("CAP_KILL",)
    assert rights.may_become(65536, 70000)
    assert not rights.may_become(65537, 0)
    assert read_rights("/nowhere") == Rights()


def test_a_preferred_account_with_the_uid_of_root_is_passed_over(monkeypatch):
    import pwd

    entries = {"postgres": ("postgres", "x", 0, 0), "nobody": NOBODY}
    monkeypatch.setattr(pwd, "getpwnam", entries.__getitem__)
    monkeypatch.setattr(pwd, "getpwall", lambda: list(entries.values()))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(accounts, "read_rights", Rights)
    assert current_account().name == "nobody"


CODE = "import pgshare\nwith pgshare.suite_postgres() as server: print('up', server.version)"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give capabilities up")
@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv is not installed")
@pytest.mark.parametrize("name", ["chown", "dac_override", "kill", "setgid", "setuid"])
def test_a_container_that_took_a_capability_away_is_one_sentence_and_no_file(name, state_dir):
    env = {**os.environ, "PGSHARE_STATE_DIR": state_dir}
    taken = ["setpriv", f"--bounding-set=-{name}", f"--inh-caps=-{name}"]
    done = subprocess.run([*taken, sys.executable, "-c", CODE], env=env, capture_output=True, text=True, check=False)
    assert f"may not hand it to another user (no CAP_{name.upper()})" in done.stderr
    assert not os.path.exists(os.path.join(state_dir, "runs"))


def test_root_of_a_namespace_with_one_user_is_one_sentence(state_dir):
    env = {**os.environ, "PGSHARE_STATE_DIR": state_dir}
    if subprocess.run(["unshare", "--user", "--map-root-user", "true"], capture_output=True, check=False).returncode:
        pytest.skip("user namespaces are not allowed here")
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", sys.executable, "-c", CODE], env=env, capture_output=True, text=True, check=False
    )
    assert "no unprivileged account exists that root may become here; run the tests as another user" in done.stderr
