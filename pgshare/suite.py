"""One Postgres for the whole suite: ask the run's keeper for a server, prove that it is ours, hand out its DSN.

Everything slow happens beside each other: the keeper starts while binaries are looked up, and psycopg is imported while the
server starts.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pgshare.deadline import Deadline, hang_budget
from pgshare.errors import LeftoverError, ServerStartError
from pgshare.ports import ATTEMPTS, free_ports
from pgshare.run import Run, cache_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pgshare.lease import Lease
    from pgshare.settings import Settings
    from pgshare.wire import Message

NAME = "postgres"
USER = DATABASE = "postgres"


@dataclass(frozen=True, kw_only=True)
class Postgres:
    """A server for tests. ``dsn`` is administrative: no search_path, not for a test's own tables."""

    dsn: str = field(repr=False)
    origin: str
    version: str
    version_num: int
    source: str
    gate: str = ""
    took: float = 0.0  # seconds from the request to a proven server, in this process
    ready_after: float = 0.0  # seconds from the keeper's spawn to the gate
    place: str = ""
    pid: int = 0
    started_here: bool = False


def shared_postgres(run: Run, settings: Settings, env: Mapping[str, str] | None = None) -> tuple[Postgres, Lease]:
    """Return the run's embedded server, starting it when this process is the first to ask, and the lease that holds it.

    Raises OriginUnavailableError (no binaries), ServerStartError, SettingError, KeeperError.
    """
    from pgshare import lease as leases

    began = time.perf_counter()
    environment = os.environ if env is None else env
    lease = leases.join(run)
    try:
        return _start(run, settings, environment, lease, began), lease
    except BaseException:
        lease.close()
        raise


def _start(run: Run, settings: Settings, env: Mapping[str, str], lease: Lease, began: float) -> Postgres:
    deadline = Deadline.after(hang_budget(env))
    spec = build_component(run, settings, env, deadline)
    lease.start(spec)
    import psycopg  # noqa: F401  # 100 ms and more, spent while the server starts

    reply = lease.receive(deadline)
    for _ in range(ATTEMPTS):
        if not (settings.tcp and _lost_port(reply)):
            break
        lease.start(build_component(run, settings, env, deadline))
        reply = lease.receive(deadline)
    if reply["state"] == "verify":
        reply = _prove(lease, reply, deadline)
    if reply["state"] != "ready":
        raise _failed(reply)
    return _postgres(reply, took=time.perf_counter() - began, started_here=reply.get("proved") is True)


def _lost_port(reply: Message) -> bool:
    """Return whether the server ended because somebody else took its port between our look and its bind."""
    return reply["state"] == "failed" and "could not bind" in str(reply.get("log_tail"))


def _prove(lease: Lease, reply: Message, deadline: Deadline) -> Message:
    """Prove that the server is ours and give it this run's password; then the others may have it."""
    from pgshare import cluster

    facts = dict(reply["facts"])  # type: ignore[call-overload]  # plain data of ours
    server = cluster.verify(facts, pid=int(str(reply["pid"])), deadline=deadline)
    known = {**server, "gate": reply["gate"], "ready_after": reply["took"]}
    lease.confirm(NAME, known)
    return {**reply, "state": "ready", "facts": {**facts, **known}, "proved": True}


def _failed(reply: Message) -> ServerStartError:
    code = reply.get("returncode")
    return ServerStartError(
        str(reply.get("error", "the server did not start")),
        returncode=code if isinstance(code, int) else None,
        log_tail=str(reply.get("log_tail", "")),
    )


def _postgres(reply: Message, *, took: float, started_here: bool) -> Postgres:
    facts: Mapping[str, object] = reply["facts"]  # type: ignore[assignment]  # plain data of ours
    return Postgres(
        dsn=str(facts["dsn"]),
        origin="embedded",
        version=str(facts["version"]),
        version_num=int(str(facts["version_num"])),
        source=str(facts["source"]),
        gate=str(facts["gate"]),
        ready_after=float(str(facts["ready_after"])),
        took=took,
        place=str(facts["place"]),
        pid=int(str(reply["pid"])),
        started_here=started_here,
    )


def build_component(run: Run, settings: Settings, env: Mapping[str, str], deadline: Deadline) -> dict[str, object]:
    """Return the keeper's spec of this run's server: what to run, as whom, where, and how to know that it is ready."""
    from pgshare import cluster
    from pgshare.account import current_account
    from pgshare.binaries import find_binaries, readable_copy
    from pgshare.place import choose_place

    cache = cache_folder(settings.state_dir, env)
    account = current_account()
    binaries = find_binaries(settings.bin, env, cache, setting=settings.named("bin"))
    binaries = readable_copy(binaries, account, cache)
    template = cluster.ensure_template(binaries, account, cache, fresh=settings.fresh, deadline=deadline)
    place = choose_place(settings.memory, run.folder, f"pgshare_{run.id}")
    return component(
        run,
        binaries,
        account,
        template,
        folder=place.folder,
        place=str(place),
        tcp=settings.tcp,
        source=f"{binaries.origin}: {binaries.bin_dir}",
        timeout=deadline.left,
    )


def component(  # noqa: PLR0913  # one value per fact of a server
    run: Run,
    binaries: Binaries,
    account: Account,
    template: Template,
    *,
    folder: str,
    place: str,
    source: str,
    timeout: float,
    tcp: bool = False,
    port: int | None = None,
    socket_dir: str | None = None,
    extra: Mapping[str, str] | None = None,
) -> dict[str, object]:
    """Return the spec for one server whose data goes below ``folder`` (made by the keeper, removed with the run)."""
    from pgshare import cluster

    uid, gid = account.for_child
    sockets = socket_dir or os.path.join(run.sockets, "s")
    data = os.path.join(folder, "data")
    nonce, password = secrets.token_hex(16), secrets.token_hex(16)
    number = port or (free_ports(1)[0] if tcp else cluster.PORT)
    host = "127.0.0.1" if tcp else sockets
    notify = os.path.join(sockets, "n")
    parts = {"host": host, "port": str(number), "user": cluster.USER, "dbname": cluster.DATABASE, "password": password}
    return {
        "name": NAME,
        "run_id": run.id,
        "argv": cluster.server_command(binaries, data, sockets, port=number, tcp=tcp, nonce=nonce, extra=extra),
        "env": {**cluster.child_env(binaries), "NOTIFY_SOCKET": notify},
        "uid": uid,
        "gid": gid,
        "dirs": [[folder, 0o700]] + ([] if socket_dir else [[sockets, 0o700]]),
        "unpack": [template.pack, data],
        "data": data,
        "log": os.path.join(run.folder, "postgres.log"),
        "notify": notify,
        "pidfile": os.path.join(data, "postmaster.pid"),
        # Throwaway data: an immediate stop leaves no segment, file or socket, and takes 3 ms instead of 16.
        "stop": [["QUIT", 5.0], ["KILL", 5.0]],
        "death_signal": "QUIT",
        "timeout": timeout,
        "facts": {
            **parts,
            "dsn": _dsn(parts),
            "template_password": template.password,
            "nonce": nonce,
            "data": data,
            "place": place,
            "source": source,
        },
    }


def _dsn(parts: Mapping[str, str]) -> str:
    """Return the keyword form: the values are ours, so only blanks and quotes of a folder's name need escaping."""
    return " ".join(f"{key}={_escape(value)}" for key, value in parts.items())


def _escape(value: str) -> str:
    if value and not any(char in value for char in " '\\"):
        return value
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
