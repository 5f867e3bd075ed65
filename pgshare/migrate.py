"""The project's own migration: find it, run it on a schema, and let its own error be seen once."""

from __future__ import annotations

import glob
import os
import sys
from typing import TYPE_CHECKING

from pgshare.errors import PgshareError, SettingError, TemplateError

if TYPE_CHECKING:
    from collections.abc import Callable

    Migration = Callable[[str], object]


class NamedMigration:
    """The migration that a setting names; found when it is first run, so that its import errors are the migration's errors."""

    def __init__(self, target: str, rootdir: str, *, name: str) -> None:
        self._target, self._rootdir, self._name = target, rootdir, name
        self.__qualname__ = target
        self._found: Migration | None = None

    def __call__(self, dsn: str) -> object:
        """Run it on the schema at ``dsn``."""
        __tracebackhide__ = True
        if self._found is None:
            self._found = find_migration(self._target, self._rootdir, name=self._name)
        return self._found(dsn)


def find_migration(target: str, rootdir: str, *, name: str) -> Migration:
    """Return the callable (it takes a DSN) that ``target`` names: "package.module:function", or a glob of .sql files.

    Raises SettingError naming the setting when there is no such thing.
    """
    __tracebackhide__ = True
    if target.endswith(".sql"):
        return _sql_files(target, rootdir, name)
    module, colon, function = target.partition(":")
    if not colon or not function or not module:
        raise SettingError(f'{name} must be "package.module:function" or a glob of .sql files, got {target!r}')
    try:
        __import__(module)  # importlib.import_module would put frames of its own above the project's
    except ModuleNotFoundError as exc:
        if exc.name is not None and (module == exc.name or module.startswith(f"{exc.name}.")):
            raise SettingError(
                f"{name}={target!r}: there is no module {exc.name!r}; correct it, or add its folder to pythonpath"
            ) from None
        raise
    migration = getattr(sys.modules[module], function, None)
    if not callable(migration):
        raise SettingError(f"{name}={target!r}: module {module!r} has no function {function!r}")
    return migration  # type: ignore[no-any-return]  # whatever the user's module holds under that name


def _sql_files(pattern: str, rootdir: str, name: str) -> Migration:
    paths = sorted(glob.glob(os.path.join(rootdir, pattern), recursive=True))
    if not paths:
        raise SettingError(f"{name}={pattern!r} matches no file below {rootdir}")

    def run_files(dsn: str) -> None:
        import psycopg

        for path in paths:
            with open(path, encoding="utf-8") as file:
                text = file.read()
            # One connection a file: what a file sets for its session does not reach the next.
            with psycopg.connect(dsn, autocommit=True) as conn:
                try:
                    conn.execute(text.encode())
                except psycopg.Error as exc:
                    where = os.path.relpath(path, rootdir)
                    raise TemplateError(f"{where}{_line(exc, text)}: {exc}") from None

    return run_files


def _line(exc: Exception, text: str) -> str:
    position = getattr(getattr(exc, "diag", None), "statement_position", None)
    return f", line {text[: int(position)].count(chr(10)) + 1}" if position and str(position).isdigit() else ""


def run_migration(migration: Migration, dsn: str, *, test: str) -> None:
    """Run it. TemplateError with the project's own exception chained when it fails; a .sql file's error is in its text."""
    __tracebackhide__ = True
    label = getattr(migration, "__qualname__", repr(migration))
    try:
        migration(dsn)
    except TemplateError as exc:
        raise TemplateError(f"the migration {label} failed for {test}: {exc}", template=label) from exc.__cause__
    except PgshareError:
        raise  # a setting that names nothing is not a failing migration
    except Exception as exc:
        raise TemplateError(f"the migration {label} failed for {test}: {type(exc).__name__}: {exc}", template=label) from exc
