"""The surface that users write against. A change here is a change of the promise: it belongs into docs/changelog.md as well."""

from __future__ import annotations

import inspect
import re

import pytest
from test_docs import COMMANDS, pytest_says

import harness
import pgshare
from pgshare.door import MARKERS

FIXTURES = {
    "pg_server": "session",
    "pg_migrate": "session",
    "pg_dsn": "function",
    "pg_schema": "function",
    "pg_conn": "function",
    "pg_async_conn": "function",
    "pg_database": "function",
    "wait_for": "session",
    "assert_never": "session",
}
FUNCTIONS = {
    "acquire_dsn": "(settings=None)",
    "isolated_schema": "(dsn, *, test='', settings=None)",
    "start_suite_postgres": "(state_dir, socket_dir, port=None)",
    "suite_postgres": "(state_dir=None, socket_dir=None, port=None, *, settings=None, server_settings=None, timeout=None)",
    "wait_for": "(probe, *, owner, budget=None, describe=<built-in function repr>, env=None)",
    "assert_never": "(probe, *, owner, within)",
}
SCHEMA = {"name", "dsn", "test", "application_name", "parts", "env", "url", "engine_args", "django", "connect", "channel"}
MEMBERS = {
    "Schema": SCHEMA,
    "Database": SCHEMA,
    "Postgres": {
        "dsn", "origin", "version", "version_num", "source", "gate", "took", "ready_after", "place", "pid", "started_here",
    },
}  # fmt: skip
METHODS = {
    "url": "(self, driver='libpq')",
    "engine_args": "(self, driver='sqlalchemy+psycopg')",
    "connect": "(self, **options)",
    "channel": "(self, name)",
    "env": "(self)",
    "django": "(self)",
}
OPTIONS = [
    "--harness-hang-budget", "--pg-bin", "--pg-census", "--pg-container", "--pg-dsn", "--pg-fresh", "--pg-keep", "--pg-memory",
    "--pg-migrate", "--pg-require", "--pg-schemas", "--pg-tcp", "--pg-wait", "--pg-warm",
]  # fmt: skip


def plain(function: object) -> str:
    """A signature without its annotations."""
    found = inspect.signature(function)
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in found.parameters.values()]
    return str(found.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def test_fixtures_have_these_names_and_scopes():
    shown = re.findall(r"^(\w+)(?: \[(\w+) scope\])? -- \S*(?:pgshare/door|harness/plugin)\.py", pytest_says("--fixtures"), re.M)
    assert {name: scope or "function" for name, scope in shown} == FIXTURES


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_take_these_arguments(name):
    assert plain(getattr(pgshare if name in pgshare.__all__ else harness, name)) == FUNCTIONS[name]


@pytest.mark.parametrize("name", MEMBERS)
def test_objects_have_these_members(name):
    found = getattr(pgshare, name)
    if issubclass(found, tuple):
        members = set(dir(found)) - set(dir(tuple))
    else:
        members = {*dir(found), *vars(found(name="n", dsn="host=h"))}
    assert {member for member in members if not member.startswith("_")} == MEMBERS[name]
    for method, signature in METHODS.items():
        if method in MEMBERS[name]:
            assert plain(getattr(found, method)) == signature


def test_options_markers_and_commands_are_these():
    shown = set(re.findall(r"--(?:pg|harness)-[a-z-]+", pytest_says("--help")))
    assert sorted(shown) == OPTIONS
    assert [marker.partition(":")[0] for marker in MARKERS] == ["pgtest", "podman"]
    assert sorted(COMMANDS) == [
        "harness doctor", "harness pg probe", "harness pg schemas", "harness pg sweep", "harness pg url", "harness ps", "harness reap",
    ]  # fmt: skip
