"""Each test has a migrated schema of its own: it commits for real, opens more connections, and needs no clean-up."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import psycopg
import pytest
from shop.store import OutOfStockError, Store


@pytest.fixture
def store(pg_conn):
    return Store(pg_conn)


def test_the_seed_is_there(store):
    assert [store.stock(sku) for sku in ("TEA-1", "TEA-2", "CUP-1", "NOT-1")] == [10, 1, 3, 0]


def test_an_order_takes_from_stock_and_has_a_total(store):
    order = store.order({"TEA-1": 2, "CUP-1": 1})
    assert store.total(order) == 2 * 450 + 1200
    assert (store.stock("TEA-1"), store.stock("CUP-1")) == (8, 2)


def test_an_order_is_all_or_nothing(store):
    with pytest.raises(OutOfStockError, match="TEA-2"):
        store.order({"TEA-1": 2, "TEA-2": 2})
    assert (store.stock("TEA-1"), store.stock("TEA-2")) == (10, 1)


def test_an_unknown_product_cannot_be_ordered(store):
    with pytest.raises(OutOfStockError):
        store.order({"NOT-1": 1})


def test_cancelling_puts_the_pieces_back_once(store):
    order = store.order({"CUP-1": 3})
    assert store.cancel(order)
    assert not store.cancel(order)
    assert store.stock("CUP-1") == 3


@pytest.mark.parametrize(("sku", "price"), [("tea", 1), ("TEA-9", 0)])
def test_the_database_refuses_nonsense(pg_conn, sku, price):
    with pytest.raises(psycopg.errors.CheckViolation):
        pg_conn.execute("insert into products values (%s, 'x', %s)", [sku, price])


def test_committed_rows_are_seen_by_another_connection(store, pg_schema):
    order = store.order({"TEA-1": 1})
    with pg_schema.connect() as other:
        assert other.execute("select state from orders where id = %s", [order]).fetchone() == ("open",)


def test_two_buyers_cannot_have_the_last_piece(pg_schema):
    results, ready = [], threading.Barrier(2)

    def buy():
        with pg_schema.connect() as conn:
            ready.wait(30)
            try:
                results.append(Store(conn).order({"TEA-2": 1}))
            except OutOfStockError:
                results.append(None)

    buyers = [threading.Thread(target=buy) for _ in range(2)]
    for buyer in buyers:
        buyer.start()
    for buyer in buyers:
        buyer.join(30)
    assert results.count(None) == 1


def test_an_asynchronous_reader(store, pg_async_conn):
    store.order({"TEA-1": 4})

    async def read():
        async with pg_async_conn as conn:
            cursor = await conn.execute("select stock from products where sku = 'TEA-1'")
            return await cursor.fetchone()

    assert asyncio.run(read()) == (6,)


def test_a_report_by_another_program(store, pg_schema):
    """A child process finds the same schema through its environment."""
    store.order({"CUP-1": 1})
    code = "import psycopg; print(psycopg.connect().execute('select sum(total_cents) from order_totals').fetchone()[0])"
    done = subprocess.run([sys.executable, "-c", code], env=pg_schema.env(), capture_output=True, text=True, check=True)
    assert done.stdout == "1200\n"
