"""docs/troubleshooting.md shows messages as they are. tests/pgshare/test_wrong_setups.py looks its real outputs up there."""

from __future__ import annotations

import ast
from enum import Enum
from typing import TYPE_CHECKING

import psycopg
import pytest
from recipes import ROOT, find_shown, shown_messages

import pgshare

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHORTEST = 12  # characters in one piece that tell a message from others


def texts(path: Path) -> Iterator[str]:
    """The fixed texts of a module, those between the values of f-strings as well."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.strip()


def test_every_row_shows_a_message_of_ours_or_one_that_a_test_pins():
    ours = {text for path in [*ROOT.glob("pgshare/*.py"), *ROOT.glob("harness/*.py")] for text in texts(path)}
    tested = "\n".join(text for path in ROOT.glob("tests/**/test_*.py") for text in texts(path))
    unknown = [
        row
        for row in shown_messages()
        if not any(len(text) >= SHORTEST and text in row for text in ours)
        and not any(len(piece) >= SHORTEST and piece.strip() in tested for piece in row.split("..."))
    ]
    assert unknown == []


def test_no_row_is_there_twice():
    assert len(set(shown_messages())) == len(shown_messages()) >= 10


@pytest.fixture
def two(pg_schema, pg_server):
    """This test's schema and another one."""
    with pgshare.isolated_schema(pg_server.dsn) as other:
        yield pg_schema, other


def test_one_connection_moved_between_schemas_gets_the_message_of_the_page(two):
    mine, other = two
    with mine.connect(autocommit=True, prepare_threshold=0) as conn:
        conn.execute("create table p (i int)")
        conn.execute("select * from p")
        conn.execute(f'set search_path = "{other.name}"')
        conn.execute("create table p (t text, u text)")
        with pytest.raises(psycopg.errors.FeatureNotSupported) as caught:
            conn.execute("select * from p")
    assert find_shown(str(caught.value)) == "cached plan must not change result type"


def test_an_adapter_for_every_connection_gets_the_message_of_the_page(two):
    """As a project would register it for all its connections, from what it read in the first test's schema."""
    from psycopg.types.enum import EnumInfo, register_enum

    mine, other = two
    mood = Enum("mood", {"ok": "ok"})
    for schema in two:
        with schema.connect() as conn:
            conn.execute("create type mood as enum ('ok'); create table moods (m mood)")
    with mine.connect() as conn:
        stale = EnumInfo.fetch(conn, "mood")
        conn.execute("drop type mood cascade")
    with other.connect() as conn:
        register_enum(stale, conn, mood)
        with pytest.raises(psycopg.errors.InternalError) as caught:
            conn.execute("insert into moods values (%s)", [mood["ok"]])
    assert find_shown(str(caught.value)) == "cache lookup failed for type ..."
