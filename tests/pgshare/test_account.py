from __future__ import annotations

import pytest

from pgshare.account import choose_account, current_account
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
