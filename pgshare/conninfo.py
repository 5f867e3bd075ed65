"""Connection strings: read, merge, redact, and put a search_path into one without losing anything else.

Only libpq's own parser touches a DSN. ``options`` is the one key whose inside we read, by the server's own splitting rule.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import quote

from pgshare.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SECRETS = ("password", "sslpassword", "oauth_client_secret")
HIDDEN = "***"
SERVICE_KEYS = ("host", "port", "user", "password", "dbname", "options", "sslmode", "sslrootcert", "sslcert", "sslkey")
# The server's one-letter switches that take a value (getopt in process_postgres_switches); the others may be joined: -Oc x=y.
WITH_VALUE = "BbCcDdfhkNprStvW-"
# What the server takes for a blank between the words of ``options`` (isspace in the C locale).
BLANKS = " \t\n\v\f\r"
URI = ("postgresql://", "postgres://")
# What people copy from the settings of SQLAlchemy and of Java.
FOREIGN = re.compile(r"jdbc:|postgres(ql)?\+\w+://")
NAME_LIMIT = 63  # bytes of an identifier; the server cuts longer ones without a word


def parse(dsn: str, *, name: str) -> dict[str, str]:
    """Return the keys that ``dsn`` sets, read by libpq. Raises SettingError naming the setting, never showing its value."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    parts: dict[str, str] = {}
    try:
        parts = {key: str(value) for key, value in conninfo_to_dict(dsn).items() if value is not None}
    except ProgrammingError as exc:
        # libpq quotes the token it stumbled over, which may be half a password.
        reason = re.sub(r'"[^"]*("|$)', '"..."', str(exc)).strip()
        if FOREIGN.match(dsn):
            reason = "it is the URL of another library, and libpq knows neither 'jdbc:' nor a '+driver'"
    except UnicodeEncodeError:
        reason = "it is not UTF-8"
    else:
        reason = _misread(dsn, parts)
    if reason:
        raise SettingError(
            f"{name} is not a connection string: {reason}; write postgresql://user:password@host:5432/dbname "
            "(percent-encode special characters) or host=... user=... password='...'"
        )
    return parts


def _misread(dsn: str, parts: Mapping[str, str]) -> str:
    """Return why libpq's reading is not what was meant; blank when it is. Without it, messages would show half a password.

    In postgresql://u:pass/word@h and postgresql://u:pass@word@h libpq finds a host, a port or a database name called "word".
    """
    if "\0" in dsn:
        return "it has a NUL, where libpq would stop reading"
    _, is_uri, rest = dsn.partition("://") if dsn.startswith(URI) else ("", "", "")
    login, has_login, address = rest.partition("?")[0].partition("@")
    if is_uri and has_login and ("/" in login or "@" in address):
        return "its user, password or database name has an '@' or '/' of its own, to be written %40 or %2F"
    if any("@" in host[1:] for host in parts.get("host", "").split(",")):
        return "its host has an '@'; in a password that is written %40"
    ports = [port.strip() for port in parts.get("port", "").split(",")]
    if not all(port == "" or (port.isascii() and port.isdigit() and 0 < int(port) < 65536) for port in ports):
        return "its port is not a number from 1 to 65535"
    return ""


def build(parts: Mapping[str, str]) -> str:
    """Return the keyword/value form of ``parts``."""
    from psycopg.conninfo import make_conninfo

    return make_conninfo("", **parts)


def to_uri(parts: Mapping[str, str], scheme: str = "postgresql") -> str:
    """Return the URI form: every special character percent-encoded (a blank is ``%20``), a socket folder as ``host`` parameter."""
    rest = dict(parts)
    # An empty value means something else than a missing one; only the query can say it.
    user, password = (rest.pop(key) if rest.get(key) else "" for key in ("user", "password"))
    login = _encode(user) + (f":{_encode(password)}" if password else "") + ("@" if user or password else "")
    hosts, ports = rest.pop("host", "").split(","), rest.pop("port", "").split(",")
    database = _encode(rest.pop("dbname", ""))
    if len(hosts) == 1 and hosts[0].startswith(("/", "@")):
        rest = {"host": hosts[0], **({"port": ports[0]} if ports[0] else {}), **rest}
        address = ""
    else:
        address = ",".join(_address(host, ports[index % len(ports)]) for index, host in enumerate(hosts))
    query = "&".join(f"{key}={_encode(value)}" for key, value in rest.items())
    return f"{scheme}://{login}{address}/{database}{'?' if query else ''}{query}"


def _address(host: str, port: str) -> str:
    # Percent-encoded inside the brackets too: an address with a zone (fe80::1%eth0) has a percent sign.
    shown = f"[{quote(host, safe=':')}]" if ":" in host and not host.startswith("/") else _encode(host)
    return f"{shown}:{port}" if port else shown


def _encode(text: str) -> str:
    return quote(text, safe="")


class Dsn(str):
    """A connection string whose ``repr`` has no password: pytest prints the values that a failing test was called with."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return it for people."""
        return repr(redact(self))


def redact(dsn: str) -> str:
    """Return ``dsn`` for people: no password in it, whatever form it has; a fixed text when it does not parse."""
    try:
        parts = parse(dsn, name="dsn")
    except SettingError:
        return "<a connection string that does not parse>"
    return build({key: HIDDEN if key in SECRETS else value for key, value in parts.items()})


def fill_from_env(parts: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """Return ``parts`` with libpq's PG* variables for the keys that are missing, as libpq itself would do.

    Said in the DSN, so that consumers which are not libpq (asyncpg, Django) mean the same server. Keys of a service file are left
    to libpq: filled-in values would beat the file.
    """
    from psycopg.pq import Conninfo

    filled = dict(parts)
    if "service" in parts or env.get("PGSERVICE"):
        if env.get("PGSERVICE"):
            filled.setdefault("service", env["PGSERVICE"])
        return filled
    for option in Conninfo.get_defaults():
        key, variable = option.keyword.decode(), (option.envvar or b"").decode()
        # PGOPTIONS is merged where options are written: a search_path in it must be refused under its own name.
        if variable and key != "options" and env.get(variable):
            filled.setdefault(key, env[variable])
    return filled


def with_search_path(
    dsn: str,
    schemas: Sequence[str],
    *,
    name: str,
    pgoptions: str = "",
    application_name: str | None = None,
) -> str:
    """Return ``dsn`` so that every session starts with exactly ``schemas`` on its path. Every other key is untouched.

    A startup setting, so RESET ALL and DISCARD ALL return to it. Settings already in ``options`` (else in PGOPTIONS, which libpq
    ignores once ``options`` is there) stay in force; a search_path among them is refused by name: SettingError.
    """
    parts = parse(dsn, name=name)
    source, taken = (f"{name} (its options)", parts["options"]) if "options" in parts else ("PGOPTIONS", pgoptions)
    refuse_search_path(taken, source=source)
    path = ",".join(quote_ident(schema) for schema in schemas)
    parts["options"] = f"{_complete(taken)} -c search_path={escape_word(path)}".lstrip(BLANKS)
    if application_name is not None and "application_name" not in parts:
        parts["application_name"] = application_name
    return Dsn(build(parts))


def refuse_search_path(options: str, *, source: str) -> None:
    """Raise SettingError naming ``source`` when ``options`` sets a search_path: the test's schema must be the path."""
    if "search_path" in settings_in(options):
        raise SettingError(f"{source} already sets search_path; remove it there, or name the schemas in PGSHARE_SCHEMAS")


def _complete(options: str) -> str:
    """Return ``options`` without a last lone backslash: the server drops it, and here it would swallow the blank after it."""
    lone = (len(options) - len(options.rstrip("\\"))) % 2
    return options[:-1] if lone else options


def fill_from_service(parts: Mapping[str, str], found: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """Return ``parts`` with what libpq ``found`` in the service file for the keys that are missing.

    ``options`` beside a service would replace the file's own without a word, and drivers that are not libpq read no such file.
    """
    filled = dict(parts)
    for key, value in found.items():
        if key in SERVICE_KEYS and not (key == "options" and value == env.get("PGOPTIONS")):
            filled.setdefault(key, value)
    return filled


def quote_ident(name: str) -> str:
    """Return ``name`` as a quoted SQL identifier. Raises SettingError for a name that the server would cut or refuse."""
    if not name or "\0" in name or len(name.encode()) > NAME_LIMIT:
        raise SettingError(f"schema name {name!r} must have 1 to {NAME_LIMIT} bytes and no NUL")
    return '"' + name.replace('"', '""') + '"'


def escape_word(text: str) -> str:
    """Return ``text`` as one word of ``options``: a backslash before each blank and backslash."""
    return "".join(f"\\{char}" if char in BLANKS or char == "\\" else char for char in text)


def split_words(options: str) -> list[str]:
    """Return the words of ``options`` as the server splits them (pg_split_opts)."""
    words: list[str] = []
    current: list[str] | None = None
    chars = iter(options)
    for char in chars:
        if char in BLANKS:
            if current is not None:
                words.append("".join(current))
            current = None
            continue
        current = [] if current is None else current
        current.append(next(chars, "") if char == "\\" else char)
    if current is not None:
        words.append("".join(current))
    return words


def settings_in(options: str) -> Iterator[str]:
    """Yield the names of the settings that ``options`` makes, spelled as the server spells them."""
    words = iter(split_words(options))
    for word in words:
        if not word.startswith("-"):
            continue
        letters = iter(word[1:])
        for letter in letters:
            if letter in WITH_VALUE:
                assignment = "".join(letters) or next(words, "")
                if letter in "c-":
                    yield assignment.partition("=")[0].strip().lower().replace("-", "_")
