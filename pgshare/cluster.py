"""One embedded cluster: the server's command line and environment, and the proof that what answers is ours."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
from typing import TYPE_CHECKING

from pgshare.deadline import NotYet, poll
from pgshare.errors import ServerStartError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import psycopg

    from pgshare.binaries import Binaries
    from pgshare.deadline import Deadline

USER = DATABASE = "postgres"
PORT = 5432  # only part of the socket's file name: the folder is the run's own
# Iterations slow down the guessing of a password that a person chose. Ours are 128 random bits, and each connection of each
# test would pay for them (4.8 ms instead of 2.1). Over TCP the usual number stays: Java's driver, which has no sockets, wants it.
SOCKET_ITERATIONS, TCP_ITERATIONS = 1, 4096


def child_env(binaries: Binaries) -> dict[str, str]:
    """Return the whole environment of a server program: no PG*, no locale of the caller, nothing secret."""
    return {"PATH": os.pathsep.join([binaries.bin_dir, "/usr/bin", "/bin"]), "LC_ALL": "C", "TZ": "UTC", "PGTZ": "UTC"}


def server_command(  # noqa: PLR0913  # one value per fact of a server
    binaries: Binaries, data: str, socket_dir: str, *, port: int, tcp: bool, nonce: str, extra: Mapping[str, str] | None = None
) -> list[str]:
    """Return the server's argv for throwaway data; ``extra`` settings win."""
    # Since 18 a server starts processes for reading ahead; small data in memory gain nothing by them, and each costs its fork.
    newer = {"io_method": "sync"} if binaries.major >= 18 else {}
    settings = {
        # Nothing here survives the run, so nothing is flushed.
        "fsync": "off",
        "synchronous_commit": "off",
        "full_page_writes": "off",
        "max_wal_size": "256MB",
        "huge_pages": "off",
        "min_wal_size": "5MB",
        "wal_buffers": "1MB",
        # 8-16 MB start 4 ms faster than the default 128 MB and hold a test's data.
        "shared_buffers": "16MB",
        # In the data folder: a server killed in its first milliseconds leaves nothing in /dev/shm.
        "dynamic_shared_memory_type": "mmap",
        "listen_addresses": "127.0.0.1" if tcp else "",
        "port": str(port),
        "unix_socket_directories": socket_dir,
        "unix_socket_permissions": "0700",
        "logging_collector": "off",
        "log_destination": "stderr",
        "log_line_prefix": "%m [%p] %a ",
        "log_timezone": "UTC",
        "timezone": "UTC",
        # Read back through every new server's first connection: it proves that what answers is what we started.
        "pgshare.nonce": nonce,
        **newer,
        **(extra or {}),
    }
    argv = [binaries.path("postgres"), "-D", data]
    for name, value in settings.items():
        argv += ["-c", f"{name}={value}"]
    return argv


def scram_verifier(password: str, iterations: int = SOCKET_ITERATIONS) -> str:
    """Return the SCRAM-SHA-256 verifier of an ASCII password (RFC 5802, as pg_authid keeps it): the server never sees the text."""
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode("ascii"), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    stored_key = hashlib.sha256(client_key).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    text = [base64.b64encode(part).decode() for part in (salt, stored_key, server_key)]
    return f"SCRAM-SHA-256${iterations}:{text[0]}${text[1]}:{text[2]}"


OTHER_METHOD = 'requirement "scram-sha-256" failed'  # libpq's words for a server that does not prove itself
PROOF = (
    "select current_setting('pgshare.nonce', true), current_setting('data_directory'), "
    "current_setting('server_version_num')::int, current_setting('server_version')"
)


def _auth() -> dict[str, str]:
    """Return how libpq is told to prove the server first: without, it gives any listener that asks the password in plain."""
    import psycopg

    return {"require_auth": "scram-sha-256"} if psycopg.pq.version() >= 160000 else {}


def _connect(facts: Mapping[str, object], password: str, timeout: float) -> psycopg.Connection:
    import psycopg

    from pgshare.scrub import without_pg_variables

    address = {key: str(facts[key]) for key in ("host", "port", "user", "dbname")} | _auth()
    with without_pg_variables():
        return psycopg.connect(
            **address,  # type: ignore[arg-type]  # libpq's keys, not psycopg's keywords
            password=password,
            connect_timeout=max(2, min(10, round(timeout))),  # libpq takes 1 for 2
            application_name="pgshare start",
            autocommit=True,
        )


def verify(facts: Mapping[str, object], *, pid: int, deadline: Deadline) -> tuple[dict[str, object], psycopg.Connection]:
    """Connect as the final user, prove that this is our server, set the run's password.

    Returns what every process of the run may know, and the connection, to be used on.

    Raises ServerStartError when another server answers, NotReadyError when none does in time.
    """
    where = f"{facts['host']} port {facts['port']}"
    conn = poll(f"postgres (pid {pid}) at {where}", lambda: _enter(facts, where, deadline), deadline)
    try:
        return _prove(conn, facts, where), conn
    except BaseException:
        conn.close()
        raise


def _enter(facts: Mapping[str, object], where: str, deadline: Deadline) -> psycopg.Connection:
    import psycopg

    from pgshare import probe

    try:
        return _connect(facts, str(facts["template_password"]), deadline.left)
    except psycopg.OperationalError as exc:
        if OTHER_METHOD in str(exc):
            raise ServerStartError(f"another server than ours answers at {where}: {probe.reason(exc)}") from exc
        if not probe.is_definite(exc):
            raise NotYet(probe.reason(exc)) from exc
        refused = exc
    try:
        # Whoever proved it before us may have died after setting the run's password.
        return _connect(facts, str(facts["password"]), deadline.left)
    except psycopg.OperationalError:
        raise ServerStartError(f"another server than ours answers at {where}: {probe.reason(refused)}") from refused


def _prove(conn: psycopg.Connection, facts: Mapping[str, object], where: str) -> dict[str, object]:
    import psycopg
    from psycopg import sql

    iterations = SOCKET_ITERATIONS if str(facts["host"]).startswith("/") else TCP_ITERATIONS
    change = sql.SQL("alter role {} password {}").format(
        sql.Identifier(str(facts["user"])), sql.Literal(scram_verifier(str(facts["password"]), iterations))
    )
    ours = False
    try:
        found = conn.execute(PROOF).fetchone()
        ours = found is not None and (found[0], os.path.realpath(found[1])) == (
            facts["nonce"],
            os.path.realpath(str(facts["data"])),
        )
        if found is None or not ours:
            raise ServerStartError(f"another server than ours answers at {where}: its data lies in {found and found[1]!r}")
        conn.execute(change)
    except psycopg.Error as exc:
        text = str(exc).strip()
        raise ServerStartError(
            f"the server at {where} cannot be used: {text}" if ours else f"another server than ours answers at {where}: {text}"
        ) from exc
    return {"version_num": found[2], "version": str(found[3]).split(" ", 1)[0]}
