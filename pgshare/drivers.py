"""The same schema for other consumers: libpq programs, SQLAlchemy, asyncpg, Django. Pure functions over a DSN's keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgshare import conninfo
from pgshare.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Mapping

DRIVERS = ("libpq", "asyncpg", "sqlalchemy", "sqlalchemy+psycopg", "sqlalchemy+asyncpg")
# libpq's keys and the variables that carry them to a libpq program.
VARIABLES = {
    "host": "PGHOST",
    "hostaddr": "PGHOSTADDR",
    "port": "PGPORT",
    "user": "PGUSER",
    "password": "PGPASSWORD",
    "dbname": "PGDATABASE",
    "options": "PGOPTIONS",
    "application_name": "PGAPPNAME",
    "connect_timeout": "PGCONNECT_TIMEOUT",
    "client_encoding": "PGCLIENTENCODING",
    "sslmode": "PGSSLMODE",
    "sslcert": "PGSSLCERT",
    "sslkey": "PGSSLKEY",
    "sslrootcert": "PGSSLROOTCERT",
    "sslcrl": "PGSSLCRL",
    "gssencmode": "PGGSSENCMODE",
    "channel_binding": "PGCHANNELBINDING",
    "target_session_attrs": "PGTARGETSESSIONATTRS",
    "service": "PGSERVICE",
    "passfile": "PGPASSFILE",
}
# Keys that asyncpg's URL knows under the same name (any other key of a URL becomes a server setting there).
ASYNCPG_KEYS = """
host port user password dbname passfile sslmode sslcert sslkey sslrootcert sslcrl sslpassword sslnegotiation
ssl_min_protocol_version ssl_max_protocol_version target_session_attrs krbsrvname gsslib application_name
"""
ASYNCPG = frozenset(ASYNCPG_KEYS.split())
# Keys that tune libpq and change nothing of what a session means: asyncpg does without them.
LIBPQ_ALONE = """
connect_timeout keepalives keepalives_idle keepalives_interval keepalives_count tcp_user_timeout load_balance_hosts
fallback_application_name sslcompression sslsni sslkeylogfile
"""
TUNING = frozenset(LIBPQ_ALONE.split())
# Keys with values that ask for no more than what asyncpg does anyway.
HARMLESS = {
    "channel_binding": ("disable", "prefer"),
    "gssencmode": ("disable", "prefer"),
    "sslcertmode": ("allow",),
    "client_encoding": ("utf8", "utf-8", "unicode"),
}


def env(parts: Mapping[str, str], base: Mapping[str, str]) -> dict[str, str]:
    """Return ``base`` as an environment for psql and other libpq programs: with our PG* variables and none that it had."""
    lost = sorted(key for key in parts if key not in VARIABLES)
    if lost:
        raise SettingError(f"the DSN sets {', '.join(lost)}, which no PG* variable can carry; hand the program the DSN instead")
    kept = {key: value for key, value in base.items() if not key.startswith("PG") or key.startswith("PGSHARE_")}
    return {**kept, **{VARIABLES[key]: value for key, value in parts.items()}}


def url(parts: Mapping[str, str], driver: str = "libpq") -> str:
    """Return a URL for ``driver``; SettingError for an unknown one and for what its URL cannot say."""
    if driver == "libpq":
        return conninfo.to_uri(parts)
    if driver == "asyncpg":
        return _asyncpg_url(parts)
    if driver in ("sqlalchemy", "sqlalchemy+psycopg"):
        return _sqlalchemy_url(parts)
    if driver == "sqlalchemy+asyncpg":
        # SQLAlchemy hands asyncpg keyword arguments made from the URL's query; a whole DSN is one of them.
        return f"postgresql+asyncpg://?dsn={_quoted(_asyncpg_url(parts))}"
    raise SettingError(f"unknown driver {driver!r}; known: {', '.join(DRIVERS)}")


def engine_args(parts: Mapping[str, str], driver: str = "sqlalchemy+psycopg") -> dict[str, object]:
    """Return keyword arguments for ``create_engine(**...)``, or ``create_async_engine`` with an asynchronous driver.

    Connect arguments instead of a URL, so every key of the DSN and every character of a password survives.
    """
    if driver in ("sqlalchemy", "sqlalchemy+psycopg"):
        return {"url": "postgresql+psycopg://", "connect_args": dict(parts)}
    if driver == "sqlalchemy+asyncpg":
        return {"url": "postgresql+asyncpg://", "connect_args": {"dsn": _asyncpg_url(parts)}}
    raise SettingError(f"unknown SQLAlchemy driver {driver!r}; known: sqlalchemy+psycopg, sqlalchemy+asyncpg")


def django(parts: Mapping[str, str]) -> dict[str, object]:
    """Return an entry for DATABASES: the schema through startup options, and no test database beside it.

    pytest-django must be told not to make one: the recipe is in docs/drivers.md.
    """
    rest = {key: value for key, value in parts.items() if key not in ("host", "port", "user", "password", "dbname")}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.get("dbname", parts.get("user", "")),
        "USER": parts.get("user", ""),
        "PASSWORD": parts.get("password", ""),
        "HOST": parts.get("host", ""),
        "PORT": parts.get("port", ""),
        "OPTIONS": rest,
        "TEST": {
            "NAME": parts.get("dbname", parts.get("user", "")),
            "MIRROR": None,
            "MIGRATE": True,
            "CHARSET": None,
            "COLLATION": None,
        },
    }


def _quoted(text: str) -> str:
    from urllib.parse import quote

    return quote(text, safe="")


def _sqlalchemy_url(parts: Mapping[str, str]) -> str:
    if "," in parts.get("host", ""):
        raise SettingError("SQLAlchemy's URL cannot name several hosts in one; use engine_args() instead")
    return conninfo.to_uri(parts, scheme="postgresql+psycopg")


def _asyncpg_url(parts: Mapping[str, str]) -> str:
    """Asyncpg reads a libpq URI but takes server settings as query keys of their own instead of ``options``.

    They are sent at startup like libpq's, so RESET ALL, which its pool sends on release, returns to them.
    """
    refused = [key for key, value in parts.items() if not _asyncpg_can(key, value)]
    if refused:
        raise SettingError(f"the DSN sets {', '.join(refused)}, which asyncpg cannot honour; remove it")
    if parts.get("host", "").startswith("@"):
        raise SettingError(f"asyncpg cannot reach the abstract socket {parts['host']!r}; give the server a socket folder or a port")
    rest = {key: value for key, value in parts.items() if key in ASYNCPG}
    return conninfo.to_uri({**rest, **dict(_settings(parts.get("options", "")))})


def _asyncpg_can(key: str, value: str) -> bool:
    """Return whether a session through asyncpg means the same with this key: honoured, mere tuning, or what it does anyway."""
    return key in ASYNCPG or key in TUNING or key == "options" or value.lower() in HARMLESS.get(key, ())


def _settings(options: str) -> list[tuple[str, str]]:
    """Return (name, value) of each setting in ``options``; SettingError for switches that are no settings."""
    found = []
    words = iter(conninfo.split_words(options))
    for word in words:
        if word == "-c":
            assignment = next(words, "")
        elif word.startswith(("-c", "--")):
            assignment = word[2:]
        else:
            raise SettingError(f"the DSN's options hold {word!r}, which only libpq programs can send; remove it")
        name, _, value = assignment.partition("=")
        found.append((name.strip().replace("-", "_"), value))
    return found
