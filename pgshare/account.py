"""Who the server runs as: ourselves, or, when we are root, an unprivileged account that already exists."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from pgshare.errors import ServerStartError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PREFERRED = ("postgres", "nobody")
# What root needs to run a server as somebody else: to become it, own folders for it, look into them, and signal it. Containers
# take capabilities away (``--cap-drop``); the numbers are the kernel's.
CAPABILITIES = {0: "CAP_CHOWN", 1: "CAP_DAC_OVERRIDE", 5: "CAP_KILL", 6: "CAP_SETGID", 7: "CAP_SETUID"}
EVERY_ID = (range(1 << 32),)
WAYS_OUT = "run the tests as another user, or set PGSHARE_DSN to a server"


class Account(NamedTuple):
    """The server's user. ``drop``: we are root and give the privileges up in the child."""

    uid: int
    gid: int
    name: str
    drop: bool

    @property
    def for_child(self) -> tuple[int | None, int | None]:
        """The (uid, gid) to change to, or nothing to change."""
        return (self.uid, self.gid) if self.drop else (None, None)


class Rights(NamedTuple):
    """What root may do in this container: capabilities that it lacks, and the ids that its user namespace has."""

    missing: tuple[str, ...] = ()
    uids: tuple[range, ...] = EVERY_ID
    gids: tuple[range, ...] = EVERY_ID

    def may_become(self, uid: int, gid: int) -> bool:
        """Return whether both ids exist in this user namespace."""
        return any(uid in ids for ids in self.uids) and any(gid in ids for ids in self.gids)


def choose_account(euid: int, egid: int, passwd: Iterable[Sequence[object]], rights: Rights | None = None) -> Account:
    """Return the account for servers: ourselves unless root; for root ``postgres``, ``nobody``, or any unprivileged one.

    ``passwd`` has (name, password, uid, gid, ...) entries. Nothing in the system is changed, no account is made.
    """
    entries = {str(entry[0]): (int(str(entry[2])), int(str(entry[3]))) for entry in passwd}
    if euid != 0:
        name = next((name for name, (uid, _) in entries.items() if uid == euid), "")
        return Account(uid=euid, gid=egid, name=name, drop=False)
    found = rights or Rights()
    if found.missing:
        raise ServerStartError(
            "Postgres does not run as root, and this root may not hand it to another user "
            f"(no {', '.join(found.missing)}); {WAYS_OUT}"
        )
    others = sorted((name for name in entries if name not in PREFERRED), key=lambda name: -entries[name][0])
    for name in (*PREFERRED, *others):
        uid, gid = entries.get(name, (0, 0))
        if uid and found.may_become(uid, gid or uid):
            return Account(uid=uid, gid=gid or uid, name=name, drop=True)
    raise ServerStartError(
        f"Postgres does not run as root and no unprivileged account exists that root may become here; {WAYS_OUT}"
    )


def current_account() -> Account:
    """Return the account that this machine allows."""
    import pwd

    if os.geteuid() != 0:
        return choose_account(os.geteuid(), os.getegid(), _own_entry())
    rights = read_rights()
    for name in PREFERRED:  # the usual case without reading the whole database
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry[2] and (rights.missing or rights.may_become(entry[2], entry[3] or entry[2])):
            return choose_account(0, 0, [entry], rights)
    return choose_account(0, 0, pwd.getpwall(), rights)


def _own_entry() -> list[Sequence[object]]:
    import pwd

    try:
        return [pwd.getpwuid(os.geteuid())]
    except KeyError:
        return []


def read_rights(proc: str = "/proc/self") -> Rights:
    """Return what this process may do; everything where the platform does not tell."""
    try:
        with open(os.path.join(proc, "status"), encoding="ascii", errors="replace") as file:
            held = next((int(line.split()[1], 16) for line in file if line.startswith("CapEff:")), -1)
        uids, gids = (_mapped(os.path.join(proc, name)) for name in ("uid_map", "gid_map"))
    except OSError:
        return Rights()
    return Rights(missing=tuple(name for bit, name in CAPABILITIES.items() if not held >> bit & 1), uids=uids, gids=gids)


def _mapped(path: str) -> tuple[range, ...]:
    with open(path, encoding="ascii") as file:
        rows = [[int(part) for part in line.split()] for line in file]
    return tuple(range(first, first + count) for first, _, count in rows)
