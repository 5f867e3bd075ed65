from __future__ import annotations

import marshal

import pytest

from pgshare.wire import LIMIT, Reader, pack

MESSAGE = {"op": "start", "list": [1, 2.5, None, True], "text": "snow ☃", "inner": {"a": "b"}}


@pytest.mark.parametrize("size", [1, 3, 7, 10_000])
def test_messages_survive_any_cut_of_the_stream(size):
    reader, got = Reader(), []
    stream = pack(MESSAGE) * 3
    for start in range(0, len(stream), size):
        got += reader.feed(stream[start : start + size])
    assert got == [MESSAGE] * 3


@pytest.mark.parametrize("data", [(LIMIT + 1).to_bytes(4, "big"), b"\0\0\0\4junk", (5).to_bytes(4, "big") + marshal.dumps(7, 2)])
def test_what_is_no_message_is_an_error(data):
    with pytest.raises(ValueError, match="not a message|over the limit"):
        Reader().feed(data)
