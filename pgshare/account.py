"""Who the server runs as: ourselves, or, when we are root, an unprivileged account that already exists."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from pgshare.errors import ServerStartError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PREFERRED = ("postgres", "nobody")


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


def choose_account(euid: int, egid: int, passwd: Iterable[Sequence[object]]) -> Account:
    """Return the account for servers: ourselves unless root; for root ``postgres``, ``nobody``, or any unprivileged one.

    ``passwd`` has (name, password, uid, gid, ...) entries. Nothing in the system is changed, no account is made.
    """
    entries = {str(entry[0]): (int(str(entry[2])), int(str(entry[3]))) for entry in passwd}
    if euid != 0:
        name = next((name for name, (uid, _) in entries.items() if uid == euid), "")
        return Account(uid=euid, gid=egid, name=name, drop=False)
    others = sorted((name for name in entries if name not in PREFERRED), key=lambda name: -entries[name][0])
    for name in (*PREFERRED, *others):
        uid, gid = entries.get(name, (0, 0))
        if uid:
            return Account(uid=uid, gid=gid or uid, name=name, drop=True)
    raise ServerStartError(
        "Postgres does not run as root and no unprivileged account exists here; run the tests as another user, or set "
        "PGSHARE_DSN to a server"
    )


def current_account() -> Account:
    """Return the account that this machine allows."""
    import pwd

    if os.geteuid() == 0:
        for name in PREFERRED:  # the usual case without reading the whole database
            try:
                return choose_account(0, 0, [pwd.getpwnam(name)])
            except KeyError:
                continue
    return choose_account(os.geteuid(), os.getegid(), pwd.getpwall())
