"""One Postgres for the whole suite: ask the run's keeper for a server, prove that it is ours, hand out its DSN.

Everything slow happens beside each other: the keeper starts while binaries are looked up, and psycopg is imported while the
server starts.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, NamedTuple

from pgshare.deadline import Deadline, hang_budget
from pgshare.errors import LeftoverError, ServerStartError, SettingError
from pgshare.ports import ATTEMPTS, free_ports
from pgshare.run import SOCKET_FOLDER_LIMIT, Run, cache_folder, has_plain_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pgshare.account import Account
    from pgshare.binaries import Binaries
    from pgshare.initdb import Template
    from pgshare.lease import Lease
    from pgshare.settings import Settings
    from pgshare.wire import Message

NAME = "postgres"


class Postgres(NamedTuple):
    """A server for tests. ``dsn`` is administrative: no search_path, not for a test's own tables."""

    dsn: str
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

    def __repr__(self) -> str:
        """Show everything but the DSN, which holds a password."""
        return f"Postgres({', '.join(f'{name}={value!r}' for name, value in self._asdict().items() if name != 'dsn')})"


def shared_postgres(
    run: Run, settings: Settings, env: Mapping[str, str] | None = None, *, binaries: Binaries | None = None
) -> tuple[Postgres, Lease]:
    """Return the run's embedded server, starting it when this process is the first to ask, and the lease that holds it.

    Raises OriginUnavailableError (no binaries), ServerStartError, SettingError, KeeperError.
    """
    from pgshare import lease as leases

    began = time.perf_counter()
    environment = os.environ if env is None else env
    lease = leases.join(run)
    try:
        return _start(run, settings, environment, lease, began, binaries), lease
    except BaseException:
        lease.close()
        raise


def _start(run: Run, settings: Settings, env: Mapping[str, str], lease: Lease, began: float, binaries: Binaries | None) -> Postgres:
    deadline = Deadline.after(hang_budget(env))
    spec = build_component(run, settings, env, deadline, binaries)
    lease.start(spec)
    _import_ahead()
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


def _import_ahead() -> None:
    """Import what the next steps need: 80 ms and more, spent while the server starts."""
    import psycopg  # noqa: F401

    from pgshare import cluster, probe, schema  # noqa: F401


def _lost_port(reply: Message) -> bool:
    """Return whether the server ended because somebody else took its port between our look and its bind."""
    return reply["state"] == "failed" and "could not bind" in str(reply.get("log_tail"))


def _prove(lease: Lease, reply: Message, deadline: Deadline) -> Message:
    """Prove that the server is ours and give it this run's password; then the others may have it."""
    from pgshare import cluster

    facts = dict(reply["facts"])  # type: ignore[call-overload]  # plain data of ours
    server, conn = cluster.verify(facts, pid=int(str(reply["pid"])), deadline=deadline)
    lease.proof = conn
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


def build_component(
    run: Run, settings: Settings, env: Mapping[str, str], deadline: Deadline, binaries: Binaries | None = None
) -> dict[str, object]:
    """Return the keeper's spec of this run's server: what to run, as whom, where, and how to know that it is ready."""
    from pgshare import initdb
    from pgshare.account import current_account
    from pgshare.binaries import find_binaries, readable_copy
    from pgshare.place import choose_place

    cache = cache_folder(settings.state_dir, env)
    account = current_account()
    check_state_folder(cache, account, name=settings.named("state_dir"))
    found = binaries or find_binaries(settings.bin, env, cache, setting=settings.named("bin"))
    binaries = readable_copy(found, account, cache)
    template = initdb.ensure_template(binaries, account, cache, fresh=settings.fresh, deadline=deadline)
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
    nonce, password = os.urandom(16).hex(), os.urandom(16).hex()
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
        "dirs": [[folder, 0o700], [sockets, 0o700]],
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


@contextlib.contextmanager
def suite_postgres(
    state_dir: str | os.PathLike[str] | None = None,
    socket_dir: str | os.PathLike[str] | None = None,
    port: int | None = None,
    *,
    settings: Settings | None = None,
    server_settings: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> Iterator[Postgres]:
    """Run a throwaway server for the block, without pytest; everything of it is gone afterwards, and when this process is killed.

    Data goes below ``state_dir`` and the socket below ``socket_dir`` (both into new folders of their own, default: the run's
    folder, data in memory where there is room). With ``port`` the server also listens on 127.0.0.1. ``timeout`` in seconds.

    Raises OriginUnavailableError, SettingError, ServerStartError, KeeperError; LeftoverError when something could not be removed.
    """
    from pgshare import lease as leases
    from pgshare.settings import settings_from_env

    began = time.perf_counter()
    found = settings_from_env() if settings is None else settings
    run = Run.new(found.state_dir)
    deadline = Deadline.after(hang_budget() if timeout is None else timeout)
    spec = _own_component(run, found, deadline, state_dir, socket_dir, port, server_settings)
    lease = leases.join(run)
    try:
        lease.start(spec)
        _import_ahead()
        reply = lease.receive(Deadline.after(deadline.left + leases.LEAVE_BUDGET))
        if reply["state"] == "verify":
            reply = _prove(lease, reply, deadline)
        if reply["state"] != "ready":
            raise _failed(reply)
        yield _postgres(reply, took=time.perf_counter() - began, started_here=True)
    finally:
        left = lease.leave()
    if left:
        raise LeftoverError("the server could not be removed completely", holders=left)


def _own_component(  # noqa: PLR0913, PLR0917  # the public function's arguments, checked and completed
    run: Run,
    settings: Settings,
    deadline: Deadline,
    state_dir: str | os.PathLike[str] | None,
    socket_dir: str | os.PathLike[str] | None,
    port: int | None,
    extra: Mapping[str, str] | None,
) -> dict[str, object]:
    from pgshare import initdb
    from pgshare.account import current_account
    from pgshare.binaries import find_binaries, readable_copy
    from pgshare.place import choose_place
    from pgshare.ports import check_port

    if port is not None:
        check_port(port, name="port")
    cache = cache_folder(settings.state_dir, os.environ)
    account = current_account()
    check_state_folder(cache, account, name=settings.named("state_dir"))
    binaries = readable_copy(find_binaries(settings.bin, os.environ, cache, setting=settings.named("bin")), account, cache)
    folder, sockets = None, None
    if state_dir is not None:
        folder = own_folder(state_dir, run, account, name="state_dir")
    if socket_dir is not None:
        sockets = own_folder(socket_dir, run, account, name="socket_dir")
        check_socket_folder(sockets, name="socket_dir")
    template = initdb.ensure_template(binaries, account, cache, fresh=settings.fresh, deadline=deadline)
    place = choose_place(settings.memory, run.folder, f"pgshare_{run.id}")
    return component(
        run,
        binaries,
        account,
        template,
        folder=folder or place.folder,
        place=str(place) if folder is None else f"disk ({folder})",
        source=f"{binaries.origin}: {binaries.bin_dir}",
        timeout=deadline.left,
        port=port,
        socket_dir=sockets,
        extra={**({"listen_addresses": "127.0.0.1"} if port is not None else {}), **(extra or {})},
    )


def own_folder(parent: str | os.PathLike[str], run: Run, account: Account, *, name: str) -> str:
    """Return the folder to be made for ``run`` below ``parent``, which exists afterwards and which the server's user can enter."""
    from pgshare.binaries import can_reach

    folder = os.path.abspath(os.fspath(parent))
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as exc:
        raise SettingError(f"{name}={folder!r} cannot be made: {exc.strerror}") from exc
    if account.drop and not can_reach(folder, account):
        raise SettingError(
            f"{name}={folder!r} cannot be entered by {account.name!r}, the user that the server runs as because we are root; "
            "choose a folder outside of private ones"
        )
    # Both arguments may name one folder.
    return os.path.join(folder, f"{run.id}{'s' if name == 'socket_dir' else ''}")


def check_state_folder(cache: str, account: Account, *, name: str) -> None:
    """Raise SettingError when we are root and the server's user could not even enter the state folder."""
    from pgshare.binaries import can_reach

    if account.drop and not can_reach(cache, account):
        raise SettingError(
            f"{name}={os.path.dirname(cache)!r} cannot be entered by {account.name!r}, the user that the server runs as because we "
            "are root; choose a folder outside of private ones, or unset it"
        )


def check_socket_folder(folder: str, *, name: str) -> None:
    """Raise SettingError, before a server is made, for a folder that cannot hold a socket: its path is too long or odd."""
    if "," in folder or not has_plain_name(folder):
        raise SettingError(f"{name}: {folder!r} holds a comma or a control character; name another folder")
    length = len(os.fsencode(folder))
    if length > SOCKET_FOLDER_LIMIT:
        raise SettingError(
            f"{name}: {folder!r} has {length} bytes, a socket's folder may have {SOCKET_FOLDER_LIMIT}; choose a shorter one"
        )


def start_suite_postgres(
    state_dir: str | os.PathLike[str], socket_dir: str | os.PathLike[str], port: int | None = None
) -> tuple[str, Callable[[], None]]:
    """Start a throwaway server and return its DSN and a function that ends it (idempotent). Errors as ``suite_postgres``."""
    stack = contextlib.ExitStack()
    postgres = stack.enter_context(suite_postgres(state_dir, socket_dir, port))
    return postgres.dsn, stack.close
