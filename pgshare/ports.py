"""Ports that are free and distinct, for the servers that need a number before they start."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

from pgshare.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

ATTEMPTS = 5


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return ``count`` distinct ports that were free a moment ago.

    All sockets stay open until all are chosen, so no number comes twice. Between this call and the server's own bind somebody
    else may take one: start with ``bind_with_retry`` and check who answers.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.ExitStack() as held:
        ports = []
        for _ in range(count):
            sock = held.enter_context(socket.socket(family, socket.SOCK_STREAM))
            # Without SO_REUSEADDR: with it the kernel would also give a number that somebody holds with it and does not listen on
            # yet. It is not needed either: no listen and no connection, so nothing lingers in TIME_WAIT and the server can bind.
            sock.bind((host, 0))
            ports.append(int(sock.getsockname()[1]))
        return ports


def check_port(port: int, *, name: str) -> int:
    """Return ``port``, or raise SettingError: 0 means "any" to the kernel and would be a different port for each reader."""
    if not 1 <= port <= 65535:
        raise SettingError(f"{name} must be a port from 1 to 65535, got {port!r}; leave it out to have a free one chosen")
    return port


def bind_with_retry(
    start: Callable[[int], T], *, lost: Callable[[Exception], bool], host: str = "127.0.0.1", attempts: int = ATTEMPTS
) -> T:
    """Call ``start(port)`` with a new free port each time until it wins the race for one; ``lost(exc)`` tells a lost race.

    Anything else that ``start`` raises propagates at once, and so does the last lost race.
    """
    tried: set[int] = set()
    for attempt in range(1, attempts + 1):
        # One more than were tried: whatever the kernel offers again, one of them is new.
        port = next(port for port in free_ports(len(tried) + 1, host) if port not in tried)
        tried.add(port)
        try:
            return start(port)
        except Exception as exc:
            if attempt == attempts or not lost(exc):
                raise
    raise AssertionError("unreachable: the last attempt returns or raises")
