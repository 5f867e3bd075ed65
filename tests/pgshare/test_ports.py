from __future__ import annotations

import socket

import pytest

from pgshare import ports
from pgshare.errors import SettingError
from pgshare.ports import bind_with_retry, check_port, free_ports


def test_ports_are_distinct_and_can_be_bound():
    found = free_ports(20)
    assert len(set(found)) == 20
    for port in found:
        with socket.create_server(("127.0.0.1", port)):
            pass


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_port_zero_and_out_of_range_are_refused_by_name(port):
    with pytest.raises(SettingError, match=f"listen must be a port from 1 to 65535, got {port}; leave it out"):
        check_port(port, name="listen")


def test_a_lost_race_gets_another_port_and_anything_else_ends_at_once():
    tried = []

    def start(port):
        tried.append(port)
        if len(tried) < 3:
            raise OSError("in use")
        return "started"

    assert bind_with_retry(start, lost=lambda exc: "in use" in str(exc)) == "started"
    assert len(set(tried)) == 3
    with pytest.raises(ValueError, match="else"):
        bind_with_retry(lambda port: int("else"), lost=lambda exc: isinstance(exc, OSError))


def test_the_last_lost_race_is_the_error():
    tried = []

    def start(port):
        tried.append(port)
        raise OSError(f"{len(tried)} in use")

    with pytest.raises(OSError, match="^2 in use$"):
        bind_with_retry(start, lost=lambda _: True, attempts=2)
    assert len(tried) == 2


def test_a_squatter_on_every_port_that_was_looked_at_never_gets_its_number_twice():
    """The squatter binds with SO_REUSEADDR and does not listen: the kernel may offer such a number again."""
    squatters, tried = [], []

    def start(port):
        tried.append(port)
        squatter = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        squatters.append(squatter)
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind(("127.0.0.1", port))
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            sock.bind(("127.0.0.1", port))
        return "started"

    try:
        with pytest.raises(OSError, match="in use"):
            bind_with_retry(start, lost=lambda exc: isinstance(exc, OSError), attempts=20)
    finally:
        for squatter in squatters:
            squatter.close()
    assert len(set(tried)) == 20


def test_a_number_that_the_kernel_offers_again_is_passed_over(monkeypatch):
    offered = iter([[5001], [5001, 5002], [5002, 5001, 5003]])
    monkeypatch.setattr(ports, "free_ports", lambda count, host: next(offered)[:count])
    tried = []

    def start(port):
        tried.append(port)
        raise OSError("in use")

    with pytest.raises(OSError, match="in use"):
        bind_with_retry(start, lost=lambda _: True, attempts=3)
    assert tried == [5001, 5002, 5003]


def test_an_ipv6_host_gets_ports_of_its_own_kind():
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("no IPv6 loopback here")
    (port,) = free_ports(1, "::1")
    with socket.create_server(("::1", port), family=socket.AF_INET6):
        pass
