"""Which runs count as proof: what a live test is, what requiring one means, and what never turns into a skip."""

from __future__ import annotations

import pytest

from pgshare import conninfo
from pgshare.ports import free_ports

BROKEN = {"closed port": {"port": ""}, "wrong database": {"dbname": "nope"}, "wrong password": {"password": "wrong"}}


@pytest.mark.parametrize("require", ["0", "1"])
@pytest.mark.parametrize("how", BROKEN)
def test_a_dsn_that_is_set_but_broken_is_an_error_and_never_a_skip(project, own_server, how, require):
    parts = {**conninfo.parse(own_server.dsn, name="x"), **BROKEN[how]}
    parts["port"] = parts["port"] or str(free_ports(1)[0])
    project.write(test_a="def test_a(pg_conn): pass\ndef test_b(pg_server): pass\n")
    result = project.run("--pg-wait", "0.1", PGSHARE_DSN=conninfo.build(parts), PGSHARE_REQUIRE=require)
    assert result.code == 1, result.out
    assert (result.count("errors"), result.count("skipped"), result.count("passed")) == (2, 0, 0)


UNITTEST = """
import unittest, pytest
class Test(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def _connect(self, pg_conn): self.conn = pg_conn
    def test_a(self): self.conn.execute("select 1")
"""


@pytest.mark.parametrize(
    "test",
    [
        "def test_a(pg_server): pass",
        "def test_a(pg_async_conn): pass",
        "import pytest\n@pytest.mark.xfail\ndef test_a(pg_conn): assert 0",
        "import pytest\n@pytest.mark.pgtest\ndef test_a(request): request.getfixturevalue('pg_server')",
        UNITTEST,
        "import pytest\n@pytest.mark.usefixtures('pg_schema')\nclass Test:\n    def test_a(self): pass",
    ],
    ids=["server", "async", "xfail", "marked", "unittest", "usefixtures"],
)
def test_every_kind_of_live_test_counts_and_is_selected(project, test):
    result = project.write(test_a=test).run("--pg-require", "-m", "pgtest", "-W", "error")
    assert result.code == 0, result.out
    assert "no live test ran" not in result.out
    assert "embedded Postgres" in result.out


def test_a_live_test_that_skips_itself_proves_nothing(project):
    result = project.write(test_a="import pytest\ndef test_a(pg_conn): pytest.skip('not today')\n").run("--pg-require")
    assert result.code == 1, result.out
    assert "no live test ran, and --pg-require wants one" in result.out


@pytest.mark.parametrize("args", [("--setup-plan",), ("--setup-only",)])
def test_a_run_that_is_not_meant_to_run_tests_is_not_judged(project, args):
    result = project.write(test_a="def test_a(pg_conn): pass\n").run(*args, "--pg-require")
    assert result.code == 0, result.out


HIDDEN = "test_a.py::test_hidden asked for pg_server at run time, so -m pgtest does not select it: mark it pgtest"


def test_the_server_asked_for_at_run_time_is_told_to_be_marked_and_stays_usable(project):
    project.write(
        test_a="def test_hidden(request): request.getfixturevalue('pg_server')\ndef test_next(pg_conn): pass\n",
    )
    result = project.run()
    assert result.code == 0, result.out
    assert f"MissingMarkWarning: {HIDDEN}" in result.out
    for args in (("--pg-require",), ("-W", "error")):
        result = project.run(*args)
        assert result.code == 1, result.out
        assert HIDDEN in result.out
        # Its own teardown fails; the next test has the very same server.
        assert (result.count("passed"), result.count("error")) == (2, 1)
