"""A shop's store: products in stock, orders that take from it. Real SQL, real constraints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    import psycopg


class OutOfStockError(Exception):
    """There are fewer pieces than an order wants; nothing was ordered."""


class Store:
    """The shop's data, on one connection. Every method is one transaction."""

    def __init__(self, conn: psycopg.Connection) -> None:
        self._conn = conn

    def stock(self, sku: str) -> int:
        """Return how many pieces are there; 0 for a product that does not exist."""
        row = self._conn.execute("select stock from products where sku = %s", [sku]).fetchone()
        self._conn.commit()
        return 0 if row is None else row[0]

    def order(self, basket: Mapping[str, int]) -> int:
        """Take the basket's pieces from stock and return the order's id, all or nothing."""
        with self._conn.transaction():
            (order,) = self._conn.execute("insert into orders default values returning id").fetchone()
            for sku, quantity in sorted(basket.items()):  # one order for everybody's locks
                self._take(sku, quantity)
                self._conn.execute("insert into order_lines values (%s, %s, %s)", [order, sku, quantity])
        return order

    def _take(self, sku: str, quantity: int) -> None:
        try:
            done = self._conn.execute("update products set stock = stock - %s where sku = %s", [quantity, sku])
        except errors.CheckViolation as exc:
            raise OutOfStockError(sku) from exc
        if done.rowcount == 0:
            raise OutOfStockError(sku)

    def total(self, order: int) -> int:
        """Return an order's total in cents."""
        row = self._conn.execute("select total_cents from order_totals where id = %s", [order]).fetchone()
        self._conn.commit()
        return 0 if row is None else int(row[0])

    def cancel(self, order: int) -> bool:
        """Put an open order's pieces back; False when it is not open any more."""
        with self._conn.transaction():
            done = self._conn.execute("update orders set state = 'cancelled' where id = %s and state = 'open'", [order])
            if done.rowcount == 0:
                return False
            self._conn.execute(
                "update products p set stock = p.stock + l.quantity from order_lines l where l.order_id = %s and l.sku = p.sku",
                [order],
            )
        return True
