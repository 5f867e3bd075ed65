"""Every setting of pgshare in one table: flag > variable > ``[tool.pgshare]`` > default, and where each value came from."""

from __future__ import annotations

import os
import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple

from pgshare.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Kind = Literal["text", "switch", "seconds", "choice", "list"]
WAIT, WAIT_IN_CI = 3.0, 30.0
TRUE, FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
# Kubernetes sets these in every pod of a namespace that has a service called "pgshare": somebody else's names, never ours.
KUBERNETES = re.compile(r"PGSHARE_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)\Z")


class Option(NamedTuple):
    """One setting: ``--pg-<name>``, ``PGSHARE_<NAME>`` and ``<name>`` in ``[tool.pgshare]``."""

    name: str
    kind: Kind
    help: str
    default: object = None
    choices: tuple[str, ...] = ()
    metavar: str | None = None
    has_flag: bool = True
    in_table: bool = True

    @property
    def flag(self) -> str:
        """The command line spelling."""
        return f"--pg-{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"PGSHARE_{self.name.upper()}"


OPTIONS = (
    Option(name="dsn", kind="text", metavar="DSN", help="run against this server instead of starting one"),
    Option(name="container", kind="switch", default=False, help="start Postgres in a container (not in this version)"),
    Option(name="require", kind="switch", default=False, help="fail instead of skipping when no Postgres is to be had"),
    Option(
        name="wait",
        kind="seconds",
        default=WAIT,
        metavar="SECONDS",
        help="how long an external server may take to answer (default 3, or 30 when CI is set)",
    ),
    Option(
        name="keep",
        kind="choice",
        default="never",
        choices=("never", "failed", "always"),
        help="keep a test's schema for a look at it, and print the command that connects to it",
    ),
    Option(
        name="warm",
        kind="seconds",
        default=0.0,
        metavar="SECONDS",
        help="keep the server running after the last run (not in this version)",
    ),
    Option(name="tcp", kind="switch", default=False, help="let the embedded server listen on 127.0.0.1 as well"),
    Option(name="fresh", kind="switch", default=False, help="make a new data folder instead of using the prepared one"),
    Option(name="bin", kind="text", metavar="DIR", help="folder with the server's programs (postgres, initdb)"),
    Option(
        name="schemas",
        kind="list",
        default=(),
        metavar="NAME[,NAME]",
        help="schemas to put on the search_path behind the test's own, for example one with extensions",
    ),
    Option(
        name="memory",
        kind="choice",
        default="auto",
        choices=("auto", "always", "never"),
        help="keep the embedded server's data in memory: auto wants 1 GiB of room",
    ),
    Option(
        name="census",
        kind="switch",
        default=False,
        help="list what each test added outside of its schema: roles, databases, large objects, and the like",
    ),
    Option(
        name="migrate",
        kind="text",
        metavar="TARGET",
        help='the project\'s migration: "package.module:function" or a glob of .sql files',
    ),
    Option(
        name="state_dir",
        kind="text",
        metavar="DIR",
        help="folder for runs and caches (default: per user)",
        has_flag=False,
        in_table=False,
    ),
)
BY_NAME = {option.name: option for option in OPTIONS}


class Settings(NamedTuple):
    """What the user asked for. ``sources`` says for each option where its value came from."""

    dsn: str | None = None
    container: bool = False
    require: bool = False
    wait: float = WAIT
    keep: str = "never"
    warm: float = 0.0
    tcp: bool = False
    fresh: bool = False
    bin: str | None = None
    schemas: tuple[str, ...] = ()
    memory: str = "auto"
    census: bool = False
    migrate: str | None = None
    state_dir: str | None = None
    sources: Mapping[str, str] = MappingProxyType({})

    def __repr__(self) -> str:
        """Show everything but the DSN, which may hold a password."""
        shown = (f"{name}={value!r}" for name, value in self._asdict().items() if name not in ("dsn", "sources"))
        return f"Settings({', '.join(shown)})"

    def named(self, option: str) -> str:
        """Return how the user wrote this setting, or its variable when it has its default."""
        return self.sources.get(option, BY_NAME[option].variable)

    def with_ini_migration(self, target: str | None) -> Settings:
        """Return these settings with pytest's own ini key ``pg_migrate`` for what nothing else has set."""
        if self.migrate is not None or not target:
            return self
        return self._replace(migrate=target, sources={**self.sources, "migrate": "pg_migrate"})


def resolve_settings(*, flags: Mapping[str, object], env: Mapping[str, str], table: Mapping[str, object]) -> Settings:
    """Return the settings of flags (by option name), environment and ``[tool.pgshare]``, in this order. Touches nothing.

    A blank variable is unset. Raises SettingError naming the setting as it was written.
    """
    _check_names(env, table)
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    for option in OPTIONS:
        found = _find(option, flags, env, table)
        if found is not None:
            source, raw = found
            values[option.name] = _convert(option, source, raw)
            sources[option.name] = source
    if "wait" not in values and env.get("CI", "").strip():
        values["wait"] = WAIT_IN_CI
    return Settings(**values, sources=sources)  # type: ignore[arg-type]  # converted by kind just above


def _find(
    option: Option, flags: Mapping[str, object], env: Mapping[str, str], table: Mapping[str, object]
) -> tuple[str, object] | None:
    """Return where the option is set, and to what. Blank is unset everywhere: ``--pg-dsn "$DSN"`` must not hide the rest."""
    places = [(option.flag, flags.get(option.name)), (option.variable, env.get(option.variable))]
    if option.in_table:
        places.append((f"[tool.pgshare] {option.name}", table.get(option.name)))
    for source, raw in places:
        value = raw.strip() if isinstance(raw, str) else raw
        if value not in (None, ""):
            return source, value
    return None


def _check_names(env: Mapping[str, str], table: Mapping[str, object]) -> None:
    keys = [option.name for option in OPTIONS if option.in_table]
    for key in table:
        if key in BY_NAME and key not in keys:
            raise SettingError(f"[tool.pgshare] cannot set {key!r}, which differs by machine; set {BY_NAME[key].variable}")
        if key not in keys:
            raise SettingError(f"[tool.pgshare] has an unknown key {key!r}{hint(key, keys)}")
    variables = [option.variable for option in OPTIONS]
    for name, value in env.items():
        if not name.startswith("PGSHARE_") or name in variables or not value.strip():
            continue
        if not KUBERNETES.match(name):
            raise SettingError(f"the environment has an unknown variable {name}{hint(name, variables)}")


def hint(name: str, known: list[str]) -> str:
    """Return the end of a sentence about an unknown ``name``: the nearest known one, or all."""
    import difflib

    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known: {', '.join(known)}"


def _convert(option: Option, source: str, raw: object) -> object:
    if option.kind == "switch":
        return _switch(source, raw)
    if option.kind == "seconds":
        return _seconds(source, raw)
    if option.kind == "list":
        return _names(source, raw)
    if not isinstance(raw, str):
        shown = f"a {type(raw).__name__}" if option.name == "dsn" else repr(raw)  # a DSN may hold a password
        raise SettingError(f"{source} must be text, got {shown}")
    if option.kind == "choice" and raw not in option.choices:
        raise SettingError(f"{source} must be one of {', '.join(option.choices)}, got {raw!r}")
    return raw


def _switch(source: str, raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    text = str(raw).lower()
    if text in TRUE:
        return True
    if text in FALSE:
        return False
    raise SettingError(f"{source} must be 1 or 0, got {raw!r}")


def _seconds(source: str, raw: object) -> float:
    try:
        value = float(raw) if not isinstance(raw, bool) else float("nan")  # type: ignore[arg-type]  # TypeError is caught
    except (TypeError, ValueError):
        value = float("nan")
    if not 0 <= value < float("inf"):
        raise SettingError(f"{source} must be a number of seconds, 0 or more, got {raw!r}")
    return value


def _names(source: str, raw: object) -> tuple[str, ...]:
    parts = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) for part in parts):
        raise SettingError(f"{source} must be a list of names, got {raw!r}")
    return tuple(part.strip() for part in parts if part.strip())


def read_table(rootdir: Path, tool: str = "pgshare") -> Mapping[str, object]:
    """Return ``[tool.<tool>]`` of ``rootdir``'s pyproject.toml; empty when there is none. Raises SettingError for broken TOML."""
    path = rootdir / "pyproject.toml"
    try:
        text = path.read_bytes()
    except OSError:
        return {}
    if tool.encode() not in text:
        return {}
    import tomllib

    try:
        table = tomllib.loads(text.decode("utf-8")).get("tool", {}).get(tool, {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise SettingError(f"{path} cannot be read: {exc}") from exc
    if not isinstance(table, dict):
        raise SettingError(f"[tool.{tool}] in {path} must be a table, got {table!r}")
    return table


def settings_from_env(env: Mapping[str, str] | None = None) -> Settings:
    """Return the settings without pytest: environment variables only."""
    return resolve_settings(flags={}, env=os.environ if env is None else env, table={})
