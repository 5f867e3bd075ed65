"""A real Postgres for every test: one server per run, a fresh schema per test, nothing left behind."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pgshare.acquire import acquire_dsn as acquire_dsn
    from pgshare.acquire import isolated_schema as isolated_schema
    from pgshare.database import Database as Database
    from pgshare.errors import InventoryError as InventoryError
    from pgshare.errors import KeeperError as KeeperError
    from pgshare.errors import LeftoverError as LeftoverError
    from pgshare.errors import NotReadyError as NotReadyError
    from pgshare.errors import OriginUnavailableError as OriginUnavailableError
    from pgshare.errors import PgshareError as PgshareError
    from pgshare.errors import RefusedError as RefusedError
    from pgshare.errors import ServerStartError as ServerStartError
    from pgshare.errors import SettingError as SettingError
    from pgshare.errors import TemplateError as TemplateError
    from pgshare.schema import Schema as Schema
    from pgshare.sessions import ConnectionLeakWarning as ConnectionLeakWarning
    from pgshare.settings import Settings as Settings
    from pgshare.suite import Postgres as Postgres
    from pgshare.suite import start_suite_postgres as start_suite_postgres
    from pgshare.suite import suite_postgres as suite_postgres

# Where each public name lives; the module is imported when the name is first used.
_HOME = {
    "ConnectionLeakWarning": "sessions",
    "Database": "database",
    "InventoryError": "errors",
    "KeeperError": "errors",
    "LeftoverError": "errors",
    "NotReadyError": "errors",
    "OriginUnavailableError": "errors",
    "PgshareError": "errors",
    "Postgres": "suite",
    "RefusedError": "errors",
    "Schema": "schema",
    "ServerStartError": "errors",
    "SettingError": "errors",
    "Settings": "settings",
    "TemplateError": "errors",
    "acquire_dsn": "acquire",
    "isolated_schema": "acquire",
    "start_suite_postgres": "suite",
    "suite_postgres": "suite",
}
__all__ = sorted(_HOME)  # noqa: PLE0605  # checked against the block above by tests/test_architecture.py

if not TYPE_CHECKING:
    # Hidden from type checkers: a visible module __getattr__ would turn every misspelt name into a silent object.
    def __getattr__(name: str) -> object:
        try:
            module = _HOME[name]
        except KeyError:
            raise AttributeError(f"module 'pgshare' has no attribute {name!r}") from None
        from importlib import import_module

        return getattr(import_module(f"pgshare.{module}"), name)

    def __dir__() -> list[str]:
        return [*globals(), *_HOME]
