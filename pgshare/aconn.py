"""An asynchronous psycopg connection for a test, opened in the test's own event loop."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pgshare.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType

    import psycopg


class AsyncConnection:
    """What ``pg_async_conn`` gives: ``async with pg_async_conn as conn`` or ``conn = await pg_async_conn``.

    The fixture itself is synchronous, so it works under anyio, pytest-asyncio in both modes, and any runner of asyncio.
    Awaited, the connection is closed after the test; as a context manager at the end of its block.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._conn: psycopg.AsyncConnection | None = None

    async def _open(self) -> psycopg.AsyncConnection:
        _refuse_other_loops()
        import psycopg

        if self._conn is None or self._conn.closed:
            self._conn = await psycopg.AsyncConnection.connect(self._dsn)
        return self._conn

    def __await__(self) -> Generator[object, None, psycopg.AsyncConnection]:
        """Open the connection, once per test."""
        return self._open().__await__()

    async def __aenter__(self) -> psycopg.AsyncConnection:
        """Open the connection."""
        return await self._open()

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        """Commit (roll back after an exception) and close, as psycopg's own connection does."""
        conn, self._conn = self._conn, None
        if conn is not None:
            await conn.__aexit__(kind, value, trace)

    def close(self) -> None:
        """Close what the test left open, from outside of its loop, which may be gone: the socket is closed, nothing is sent."""
        conn, self._conn = self._conn, None
        if conn is not None and not conn.closed:
            conn.pgconn.finish()


def _refuse_other_loops() -> None:
    """Psycopg speaks asyncio; say so on trio, instead of an AttributeError from deep inside."""
    sniffio = sys.modules.get("sniffio")
    try:
        running = sniffio.current_async_library() if sniffio is not None else "asyncio"
    except sniffio.AsyncLibraryNotFoundError:  # type: ignore[union-attr]  # only raised by the module itself
        running = "asyncio"
    if running != "asyncio":
        raise SettingError(
            f"pg_async_conn needs asyncio, and this test runs on {running}: psycopg has no {running} support; "
            "use pg_conn in a thread, or run the test on asyncio"
        )
