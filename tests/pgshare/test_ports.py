from __future__ import annotations

import socket

import pytest

from pgshare.errors import SettingError
from pgshare.ports import bind_with_retry, check_port, free_ports


def test_ports_are_distinct_and_can_be_bound():
    ports = free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
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
    with pytest.raises(OSError, match="in use"):
        bind_with_retry(start := lambda port: (_ for _ in ()).throw(OSError("in use")), lost=lambda _: True, attempts=2)
    with pytest.raises(ValueError, match="else"):
        bind_with_retry(lambda port: int("else"), lost=lambda exc: isinstance(exc, OSError))
    assert start
