"""Wait for a server that somebody else runs, and learn what it is: at once for what cannot come true, bounded for what can."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from pgshare import conninfo
from pgshare.deadline import Deadline, NotYet, poll
from pgshare.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

# A server's own refusal has a severity, in whatever language, and two blanks ("FATAL:  ..."); libpq's own words have not.
REFUSAL = re.compile(r"(?:failed|bad): (\w+):  (.*)")
# The refusals that pass by themselves: 57P03 (starting, stopping, recovering) and 53300 (no free slot).
PASSING = re.compile(
    r"the database system is |too many clients|remaining connection slots|too many connections|no more connections allowed"
)
HOPELESS = re.compile(
    r"invalid (integer value|\w+ value|port number|connection option)|not supported|too long|definition of service|service file"
    # libpq's own words for a login or an encryption that this server and this DSN will never agree on.
    r"|no password supplied|does not support SSL|certificate|private key file|channel binding required"
    r"|authentication method requirement|GSSAPI|peer user name|requirepeer"
)
# What a pooler says to the startup setting that isolates.
POOLER = "startup parameter"
DIRECT = "goes through a connection pooler; name the server itself (its direct host and port)"
PAUSES = (0.01, 0.02, 0.04, 0.08, 0.16)
LONGEST = 0.25


class ServerFacts(NamedTuple):
    """What one connection told about a server."""

    version_num: int
    version: str
    encoding: str
    user: str
    database: str
    can_create: bool
    read_only: bool
    in_recovery: bool
    max_connections: int
    reserved: int


# A server may serve its users a statement_timeout by role or database; our question is not for them to cut.
FACTS = """
set statement_timeout = 0; select current_setting('server_version_num')::int, current_setting('server_version'),
       current_setting('server_encoding'), current_user::text, current_database()::text,
       has_database_privilege(current_database(), 'CREATE'), current_setting('default_transaction_read_only') = 'on',
       pg_is_in_recovery(), current_setting('max_connections')::int, current_setting('superuser_reserved_connections')::int
       + coalesce(current_setting('reserved_connections', true)::int, 0)
"""


def is_definite(exc: Exception) -> bool:
    """Return whether a failed connection will fail the same way again: the server refused it, or it cannot even be tried."""
    text = str(exc)
    refusals = REFUSAL.findall(text)
    if refusals:
        return any(not PASSING.search(words) for _, words in refusals)
    return HOPELESS.search(text) is not None


def connect(dsn: str, *, timeout: float = 10.0, **extra: object) -> psycopg.Connection:
    """Return an autocommit connection of our own: with its own client_encoding, whatever role or database defaults say."""
    import psycopg

    parts = conninfo.parse(dsn, name="dsn")
    parts["connect_timeout"] = _bounded(parts.get("connect_timeout", ""), max(2, round(timeout)))
    parts["client_encoding"] = "utf8"
    parts |= {key: str(value) for key, value in extra.items()}
    return psycopg.connect(conninfo.build(parts), autocommit=True)


def _bounded(own: str, limit: int) -> str:
    """Return the DSN's own connect_timeout where it is the shorter one (0 means for ever); libpq refuses what is no number."""
    if not own:
        return str(limit)
    return own if not own.isdigit() or 0 < int(own) <= limit else str(limit)


def probe_postgres(dsn: str, deadline: Deadline, *, name: str) -> ServerFacts:
    """Return what the server at ``dsn`` is; see ``open_probed``."""
    facts, conn = open_probed(dsn, deadline, name=name)
    conn.close()
    return facts


def open_probed(dsn: str, deadline: Deadline, *, name: str) -> tuple[ServerFacts, psycopg.Connection]:
    """Return what the server at ``dsn`` is, and the connection that told it, trying until ``deadline``.

    The first try is immediate. Refused, unresolved, starting up and no free slot are tried again; NotReadyError says what was seen
    last. Authentication, a missing database and every other refusal end the wait at once: SettingError with the server's words.
    """
    import psycopg

    tries = 0

    def attempt() -> psycopg.Connection:
        nonlocal tries
        tries += 1
        try:
            return connect(dsn, timeout=deadline.left)
        except psycopg.Error as exc:
            if POOLER in str(exc):
                raise SettingError(f"{name} {DIRECT}; it said: {reason(exc)}") from None
            if is_definite(exc) or not isinstance(exc, psycopg.OperationalError):
                count = f" ({tries} tries)" if tries > 1 else ""
                raise SettingError(f"{name}: the server refused the connection: {reason(exc)}{count}") from None
            raise NotYet(reason(exc)) from None

    conn = poll(f"the server that {name} names", attempt, deadline, pauses=_pauses())
    try:
        cursor = conn.execute(FACTS)
        cursor.nextset()
        row = cursor.fetchone()
    except psycopg.Error as exc:
        conn.close()
        raise SettingError(f"{name}: the server does not answer as Postgres does: {reason(exc)}; name a Postgres server") from None
    facts = ServerFacts(*(_text(value) for value in row or ()))  # type: ignore[arg-type]  # the row's order is the fields' order
    return facts, conn


def effective(conn: psycopg.Connection) -> dict[str, str]:
    """Return what libpq connected with, a service file's keys among it; only what differs from libpq's built-in defaults."""
    found = ((option.keyword.decode(), option.val, option.compiled) for option in conn.pgconn.info)
    return {key: value.decode() for key, value, built_in in found if value and value != built_in}


def _pauses() -> Iterator[float]:
    yield from PAUSES
    while True:
        yield LONGEST


def _text(value: object) -> object:
    """Return text for the bytes that a server with SQL_ASCII sends."""
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value


def reason(exc: Exception) -> str:
    """Return the server's or libpq's words without the repetition that surrounds them."""
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    listed = [line.removeprefix("- ") for line in lines if line.startswith("- host:")]
    if listed:
        return "; ".join(listed)
    first = lines[0] if lines else type(exc).__name__
    return re.sub(r"^connection (failed|is bad|timeout expired): ", "", first)


def check_usable(facts: ServerFacts, *, name: str, oldest: int = 14) -> None:
    """Raise SettingError with the way out when tests cannot run against this server."""
    if facts.version_num < oldest * 10000:
        raise SettingError(f"{name}: the server is Postgres {facts.version}; {oldest} or newer is needed")
    if facts.in_recovery:
        raise SettingError(f"{name}: the server is a standby in recovery and takes no writes; name the primary")
    if facts.read_only:
        raise SettingError(
            f"{name}: default_transaction_read_only is on for role {facts.user!r} or database {facts.database!r}; "
            f"run: ALTER ROLE {conninfo.quote_ident(facts.user)} SET default_transaction_read_only = off"
        )
    if not facts.can_create:
        raise SettingError(
            f"{name}: role {facts.user!r} may not create schemas in database {facts.database!r}; run: "
            f"GRANT CREATE ON DATABASE {conninfo.quote_ident(facts.database)} TO {conninfo.quote_ident(facts.user)}"
        )


def prove_isolation(dsn: str, schema: str, *, name: str) -> psycopg.Connection:
    """Connect through ``dsn``, make sure that sessions really start in ``schema``, and return that connection.

    SettingError names a pooler in between.
    """
    import psycopg

    way_out = f"{name} {DIRECT}"
    try:
        conn = psycopg.connect(dsn)
    except psycopg.OperationalError as exc:
        if POOLER in str(exc):
            raise SettingError(f"{way_out}; it said: {reason(exc)}") from None
        raise SettingError(f"{name}: cannot connect for a test: {reason(exc)}") from None
    try:
        row = conn.execute("select current_schema()::text").fetchone()
        conn.rollback()
    except psycopg.Error as exc:
        conn.close()
        raise SettingError(f"{name}: a session for a test cannot tell its schema: {reason(exc)}") from None
    found = None if row is None else _text(row[0])
    if found != schema:
        conn.close()
        raise SettingError(
            f"{way_out}; a session that asked for schema {schema!r} got {found!r}, because the search_path was dropped on the way"
        )
    return conn
