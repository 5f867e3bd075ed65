"""Messages between the keeper and its clients: a four-byte length, then plain data.

``marshal`` because both ends are the same user's Python (the peer's uid is checked) and because the json package costs the keeper
9 ms at start; version 2 of the format is stable across Python 3.
"""

from __future__ import annotations

import marshal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket

    Message = dict[str, object]

LIMIT = 1 << 20


def pack(message: Message) -> bytes:
    """Return the bytes of one message."""
    body = marshal.dumps(message, 2)
    return len(body).to_bytes(4, "big") + body


def send(conn: _socket.socket, message: Message) -> None:
    """Send one message; messages are small, a peer that does not read for the socket's timeout is an error."""
    conn.sendall(pack(message))


class Reader:
    """Collect bytes of one connection and cut them into messages."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that are complete after ``data``; ValueError for what is no message of ours."""
        self._buffer += data
        messages: list[Message] = []
        while len(self._buffer) >= 4:
            size = int.from_bytes(self._buffer[:4], "big")
            if size > LIMIT:
                raise ValueError(f"a message of {size} bytes is over the limit")
            if len(self._buffer) < 4 + size:
                break
            try:
                message = marshal.loads(self._buffer[4 : 4 + size])  # noqa: S302  # same uid, checked
            except (EOFError, TypeError, ValueError) as exc:
                raise ValueError("not a message") from exc
            if not isinstance(message, dict):
                raise ValueError("not a message")  # noqa: TRY004  # one kind of error for every malformed message
            messages.append(message)
            self._buffer = self._buffer[4 + size :]
        return messages
