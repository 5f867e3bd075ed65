from __future__ import annotations

import socket
import struct
import threading

import psycopg
import pytest

from pgshare import conninfo, probe
from pgshare.admin import open_slot
from pgshare.deadline import Deadline
from pgshare.errors import NotReadyError, SettingError
from pgshare.probe import check_usable, is_definite, probe_postgres


class Talker:
    """Speaks just enough of the protocol to refuse: a server that is starting, full, or something else entirely."""

    def __init__(self, *refusals):
        self.refusals, self.seen = list(refusals), 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.dsn = f"host=127.0.0.1 port={self.listener.getsockname()[1]} user=u dbname=d sslmode=disable gssencmode=disable"
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        while True:
            try:
                conn, _ = self.listener.accept()
            except OSError:
                return
            with conn:
                conn.recv(4096)
                severity, code, text = self.refusals[min(self.seen, len(self.refusals) - 1)]
                self.seen += 1
                fields = f"S{severity}\0VFATAL\0C{code}\0M{text}\0\0".encode()
                conn.sendall(b"E" + struct.pack("!i", len(fields) + 4) + fields)

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(20)


@pytest.fixture
def talker():
    made = []

    def make(*refusals):
        made.append(Talker(*refusals))
        return made[0]

    yield make
    for one in made:
        one.close()


STARTING = ("FATAL", "57P03", "the database system is starting up")
FULL = ("FATAL", "53300", "sorry, too many clients already")
NO_DATABASE = ("FATAL", "3D000", 'database "d" does not exist')


@pytest.mark.parametrize("refusal", [STARTING, FULL])
def test_what_passes_by_itself_is_waited_for(talker, refusal):
    server = talker(refusal)
    with pytest.raises(NotReadyError) as caught:
        probe_postgres(server.dsn, Deadline.after(0.3), name="PGSHARE_DSN")
    assert refusal[2] in caught.value.last_seen
    assert caught.value.attempts == server.seen > 2


def test_a_refusal_after_start_up_ends_the_wait(talker):
    server = talker(STARTING, STARTING, NO_DATABASE)
    with pytest.raises(
        SettingError, match='PGSHARE_DSN: the server refused the connection: .*FATAL:  database "d" does not exist \\(3 tries\\)$'
    ):
        probe_postgres(server.dsn, Deadline.after(60), name="PGSHARE_DSN")
    assert server.seen == 3


def test_a_refusal_in_another_language_ends_the_wait_too(talker):
    server = talker(("FATALE", "28P01", "autenticazione fallita"))
    with pytest.raises(SettingError, match="autenticazione fallita"):
        probe_postgres(server.dsn, Deadline.after(60), name="PGSHARE_DSN")
    assert server.seen == 1


@pytest.mark.parametrize(
    ("text", "definite"),
    [
        ('connection failed: connection to server at "h", port 1 failed: FATAL:  password authentication failed', True),
        ('connection failed: connection to server at "h", port 1 failed: FATAL:  the database system is shutting down', False),
        ('connection failed: connection to server at "h", port 1 failed: FATAL:  remaining connection slots are reserved', False),
        ('connection failed: connection to server at "h", port 1 failed: Connection refused', False),
        ("failed to resolve host 'h': [Errno -2] Name or service not known", False),
        ('connection is bad: invalid integer value "tcp://x" for connection option "port"', True),
        ('connection is bad: definition of service "nope" not found', True),
        ('connection failed: connection to server at "h", port 1 failed: fe_sendauth: no password supplied', True),
        ('connection failed: connection to server at "h", port 1 failed: server does not support SSL, but SSL was required', True),
        ('connection failed: connection to server at "h", port 1 failed: SSL error: certificate verify failed', True),
        ('connection failed: connection to server at "h", port 1 failed: channel binding required, but SSL not in use', True),
        ('connection failed: connection to server at "h", port 1 failed: server closed the connection unexpectedly', False),
        ("connection timeout expired", False),
        ("", False),
    ],
)
def test_only_what_cannot_come_true_is_definite(text, definite):
    assert is_definite(psycopg.OperationalError(text)) is definite


@pytest.mark.parametrize(("own", "used"), [("", "3"), ("0", "3"), ("-1", "-1"), ("2", "2"), ("60", "3"), ("soon", "soon")])
def test_the_dsns_own_timeout_is_used_where_it_is_the_shorter_one(own, used):
    assert probe._bounded(own, 3) == used


def test_a_timeout_that_is_no_number_is_told_in_a_sentence(live_dsn):
    with pytest.raises(SettingError, match="PGSHARE_DSN: the server refused the connection: .*connect_timeout"):
        probe_postgres(f"{live_dsn} connect_timeout=soon", Deadline.after(60), name="PGSHARE_DSN")


def test_a_role_with_a_tiny_statement_timeout_can_be_probed(own_server):
    with psycopg.connect(own_server.dsn, autocommit=True) as admin:
        admin.execute("create role hasty login password 'x'; alter role hasty set statement_timeout = '1ms'")
        try:
            dsn = conninfo.build({**conninfo.parse(own_server.dsn, name="x"), "user": "hasty", "password": "x"})
            assert probe_postgres(dsn, Deadline.after(30), name="x").user == "hasty"
        finally:
            admin.execute("drop role hasty")


def test_one_connection_tells_everything(live_dsn):
    facts = probe_postgres(live_dsn, Deadline.after(30), name="x")
    assert facts.version_num >= 140000
    assert (facts.encoding, facts.read_only, facts.in_recovery, facts.can_create) == ("UTF8", False, False, True)
    assert facts.max_connections > facts.reserved
    check_usable(facts, name="x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version_num": 130005, "version": "13.5"}, "x: the server is Postgres 13.5; 14 or newer is needed"),
        ({"in_recovery": True}, "x: the server is a standby in recovery and takes no writes; name the primary"),
    ],
)
def test_a_server_that_cannot_serve_tests_is_named(live_dsn, change, message):
    facts = probe_postgres(live_dsn, Deadline.after(30), name="x")._replace(**change)
    with pytest.raises(SettingError) as caught:
        check_usable(facts, name="x")
    assert str(caught.value) == message


def test_no_free_slot_is_a_bounded_wait_that_says_so(own_server, monkeypatch):
    monkeypatch.setattr("pgshare.admin.SLOT_WAIT", 0.3)
    held = []
    try:
        with pytest.raises(psycopg.OperationalError):
            for _ in range(60):
                held.append(psycopg.connect(own_server.dsn))
        with pytest.raises(
            NotReadyError,
            match=r"a connection to the server that PGSHARE_DSN names not ready after 0\.\d+s .* too many clients already",
        ):
            open_slot(own_server.dsn, name="PGSHARE_DSN", application_name="x")
    finally:
        for conn in held:
            conn.close()
    assert probe.LONGEST == 0.25


def test_a_test_that_finds_no_slot_is_told_the_limit_and_who_holds_them(own_server):
    from pgshare.run import Run
    from pgshare.schema import SchemaFactory
    from pgshare.settings import Settings

    factory = SchemaFactory(own_server, Run.new(), Settings())
    schema = factory.create("t")
    held = []
    try:
        with pytest.raises(psycopg.OperationalError):
            for _ in range(60):
                held.append(psycopg.connect(own_server.dsn, application_name="leaky pool"))
        with pytest.raises(SettingError) as caught:
            factory.connect(schema, wait=0.1)
    finally:
        for conn in held:
            conn.close()
    assert str(caught.value).startswith(
        "the server of this run has no free connection slot after 0.1s; max_connections is 30, used by: leaky pool x"
    )
    assert "admin x1" in str(caught.value)
    factory.drop(schema)
    factory.close()
