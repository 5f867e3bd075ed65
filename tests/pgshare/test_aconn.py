from __future__ import annotations

import asyncio

import pytest

from pgshare.aconn import AsyncConnection
from pgshare.errors import SettingError

TESTS = """
import pytest

async def rows(conn):
    await conn.execute("create table t (i int)")
    await conn.execute("insert into t values (1)")
    cursor = await conn.execute("select count(*) from t")
    return (await cursor.fetchone())[0]

{mark}
async def test_awaited(pg_async_conn):
    conn = await pg_async_conn
    assert await pg_async_conn is conn
    assert await rows(conn) == 1

{mark}
async def test_as_a_context(pg_async_conn, pg_schema):
    async with pg_async_conn as conn:
        assert await rows(conn) == 1
    assert conn.closed
    with pg_schema.connect() as other:
        assert other.execute("select i from t").fetchall() == [(1,)]
"""
SCOPE = "asyncio_default_fixture_loop_scope=function"
BACKEND = "@pytest.fixture\ndef anyio_backend():\n    return {backend!r}\n"


@pytest.mark.parametrize(
    ("plugin", "mark", "options"),
    [
        ("asyncio", "@pytest.mark.asyncio", ("-o", "asyncio_mode=strict", "-o", SCOPE)),
        ("asyncio", "", ("-o", "asyncio_mode=auto", "-o", SCOPE)),
        ("anyio", "@pytest.mark.anyio", ()),
    ],
    ids=["asyncio-strict", "asyncio-auto", "anyio"],
)
def test_it_opens_in_the_tests_own_loop(project, plugin, mark, options):
    other = "anyio" if plugin == "asyncio" else "asyncio"
    project.write(test_a=TESTS.replace("{mark}", mark) + (BACKEND.format(backend="asyncio") if plugin == "anyio" else ""))
    result = project.run(
        "-W", "error", *options,
        plugins=("-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:pytest_django", "-p", f"no:{other}"),
    )  # fmt: skip
    assert result.code == 0, result.out
    assert result.count("passed") == 2


def test_on_trio_one_sentence_names_the_limit(project):
    project.write(test_a=TESTS.replace("{mark}", "@pytest.mark.anyio") + BACKEND.format(backend="trio"))
    result = project.run(plugins=("-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:pytest_django", "-p", "no:asyncio"))
    assert result.count("failed") == 2, result.out
    sentence = "pg_async_conn needs asyncio, and this test runs on trio: psycopg has no trio support; use pg_conn in a thread"
    assert sentence in result.out


def test_what_a_test_left_open_is_closed_from_outside_of_its_loop(pg_dsn):
    held = AsyncConnection(pg_dsn)

    async def use():
        conn = await held
        await conn.execute("select 1")
        return conn

    conn = asyncio.run(use())
    held.close()
    held.close()
    assert conn.closed


def test_an_exception_rolls_back(pg_schema):
    async def fail():
        async with AsyncConnection(pg_schema.dsn) as conn:
            await conn.execute("create table t (i int)")
            raise KeyError

    with pytest.raises(KeyError):
        asyncio.run(fail())
    with pg_schema.connect() as conn:
        assert conn.execute("select to_regclass('t')").fetchone() == (None,)


def test_the_error_is_a_setting_error(monkeypatch):
    class Trio:
        AsyncLibraryNotFoundError = KeyError

        @staticmethod
        def current_async_library():
            return "trio"

    monkeypatch.setitem(__import__("sys").modules, "sniffio", Trio)
    with pytest.raises(SettingError, match="needs asyncio"):
        asyncio.run(AsyncConnection("host=nowhere")._open())
