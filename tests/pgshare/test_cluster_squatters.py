"""Whatever listens where our server should: it is never taken for ours, never told a password, never waited for too long."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time

import psycopg
import pytest

import pgshare
from pgshare import cluster
from pgshare.deadline import Deadline
from pgshare.errors import NotReadyError, ServerStartError
from pgshare.settings import Settings

CLEARTEXT, MD5, TRUST = 3, 5, 0
heard: list[bytes] = []


def message(kind, body):
    return kind + struct.pack("!I", len(body) + 4) + body


def error(code, text):
    return message(b"E", b"SFATAL\0C" + code + b"\0M" + text + b"\0\0")


def startup(conn):
    """Read up to the startup message, refusing encryption."""
    while True:
        (length,) = struct.unpack("!I", conn.recv(4))
        (code,) = struct.unpack("!I", conn.recv(length - 4)[:4])
        if code >> 16 == 3:
            return
        conn.sendall(b"N")


def silent(conn):
    heard.append(conn.recv(4096))
    conn.recv(4096)


def closes(conn):
    conn.recv(1)


def speaks_http(conn):
    conn.recv(4096)
    conn.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")


def asks_for_cleartext(conn):
    startup(conn)
    conn.sendall(message(b"R", struct.pack("!I", CLEARTEXT)))
    heard.append(conn.recv(4096))


def asks_for_md5(conn):
    startup(conn)
    conn.sendall(message(b"R", struct.pack("!I", MD5) + b"salt"))
    heard.append(conn.recv(4096))


def trusts(conn):
    startup(conn)
    ready = message(b"Z", b"I")
    conn.sendall(message(b"R", struct.pack("!I", TRUST)) + ready)
    while conn.recv(4096):
        conn.sendall(error(b"42000", b"what a strange question").replace(b"FATAL", b"ERROR") + ready)


def is_starting(conn):
    startup(conn)
    conn.sendall(error(b"57P03", b"the database system is starting up"))


@contextlib.contextmanager
def squatter(behave):
    heard.clear()

    def serve():
        while True:
            try:
                conn, _ = listener.accept()
            except OSError:
                return
            with conn, contextlib.suppress(OSError, struct.error):
                behave(conn)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        port = listener.getsockname()[1]
        yield {
            "host": "127.0.0.1", "port": port, "user": "postgres", "dbname": "postgres",
            "password": "runsecret", "template_password": "templatesecret", "nonce": "n", "data": "/ours",
        }  # fmt: skip
        listener.shutdown(socket.SHUT_RDWR)


def verify(facts, seconds):
    return cluster.verify(facts, pid=1, deadline=Deadline.after(seconds))


@pytest.mark.skipif(psycopg.pq.version() < 160000, reason="libpq 16 and newer can be told to refuse other methods")
@pytest.mark.parametrize("behave", [asks_for_cleartext, asks_for_md5, trusts])
def test_a_squatter_that_speaks_postgres_is_refused_at_once_and_told_no_password(behave):
    with (
        squatter(behave) as facts,
        pytest.raises(ServerStartError, match=r"another server than ours answers at 127\.0\.0\.1 port \d+"),
    ):
        verify(facts, 30)
    assert b"secret" not in b"".join(heard)
    assert not any(part.startswith(b"pmd5") for part in heard)


def test_a_squatter_that_answers_the_proof_with_an_error_is_one_sentence(monkeypatch):
    monkeypatch.setattr(cluster, "_auth", dict)  # an old libpq, which lets it in
    with (
        squatter(trusts) as facts,
        pytest.raises(ServerStartError, match="another server than ours answers at .*: what a strange question"),
    ):
        verify(facts, 30)


def test_our_own_server_that_refuses_its_password_is_told_as_ours(state_dir):
    settings = Settings(state_dir=state_dir)
    with (
        pytest.raises(
            ServerStartError, match="the server at .* port 5432 cannot be used: cannot execute ALTER ROLE in a read-only"
        ),
        pgshare.suite_postgres(settings=settings, server_settings={"default_transaction_read_only": "on"}),
    ):
        pass


@pytest.mark.parametrize("behave", [closes, speaks_http, is_starting])
def test_what_may_still_become_ours_is_waited_for_within_the_budget(behave):
    began = time.monotonic()
    with (
        squatter(behave) as facts,
        pytest.raises(NotReadyError, match=r"postgres \(pid 1\) at 127\.0\.0\.1 port \d+ not ready after"),
    ):
        verify(facts, 0.5)  # the limit is the subject
    assert time.monotonic() - began < 10


def test_a_squatter_that_says_nothing_does_not_stretch_the_budget():
    began = time.monotonic()
    with squatter(silent) as facts, pytest.raises(NotReadyError, match="timeout expired"):
        verify(facts, 0.5)  # the limit is the subject; libpq's own least is 2 s
    assert time.monotonic() - began < 8
