"""Every code block of the pages, run as a reader would run it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter

from recipes import PAGES, ROOT, blocks, find_page, python_block

from pgshare import conninfo, drivers

# Who runs the blocks of a page: a new block has to be added here together with what runs it.
RUN = {
    ("README.md", "console"): 3,  # the three commands are run below and by make demo; their words are checked in test_docs.py
    ("README.md", "python"): 1,
    ("README.md", "toml"): 1,
    ("CONTRIBUTING.md", "console"): 1,  # by .ci/run
    ("docs/api.md", "python"): 1,
    ("docs/tiers.md", "yaml"): 1,
    ("docs/drivers.md", "python"): 2,  # the second one by tests/pgshare/test_drivers_django.py
    ("docs/isolation.md", "ini"): 1,
    ("examples/quickstart/README.md", "console"): 1,  # by make demo
}
LEAK = "import psycopg\nkept = []\ndef test_a(pg_dsn):\n    kept.append(psycopg.connect(pg_dsn))\n"


def test_no_block_is_left_out():
    found = Counter()
    for page in PAGES:
        fences = re.findall(r"^```(.*)$", page.read_text(), re.M)
        assert not any(fences[1::2]), f"{page}: an unclosed block"
        found.update((str(page.relative_to(ROOT)), language) for language in fences[::2])
    assert found == RUN


def test_the_readme_is_green_in_ten_lines(project):
    (block,) = blocks("README.md", "python")
    assert len(block.splitlines()) <= 10
    name = re.match(r"# (test_\w+)\.py\n", block)
    result = project.write(**{name[1]: block}).run("-m", "pgtest")
    assert result.code == 0, result.out
    assert result.count("passed") == 1
    project.wait_clean()


def test_the_readmes_migration_is_run(project):
    (block,) = blocks("README.md", "toml")
    (project.folder / "migrations").mkdir()
    (project.folder / "migrations" / "1.sql").write_text("create table things (name text); insert into things values ('seed');")
    test = "def test_a(pg_conn):\n    assert pg_conn.execute('select name from things').fetchall() == [('seed',)]\n"
    result = project.write(test_a=test, pyproject=block).run("-m", "pgtest")
    assert result.code == 0, result.out


def test_the_readmes_unit_lane_selects_what_is_not_live(project):
    (lane,) = re.findall(r'`pytest -m "(not [^"]+)"`', find_page("README.md").read_text())
    result = project.write(test_a="def test_live(pg_dsn): pass\ndef test_unit(): pass\n").run("-m", lane)
    assert result.code == 0, result.out
    assert (result.count("passed"), result.count("deselected")) == (1, 1)
    assert project.residue() == []


def test_the_servers_of_a_program_without_pytest_are_gone_at_its_end(project):
    (block,) = blocks("api.md", "python")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", block],
        env=project.env(),
        capture_output=True,
        text=True,
        check=False,
        cwd=project.folder,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\d+\.\d+ \('pgshare_\w+',\)\n", done.stdout)
    project.wait_clean()


def test_the_ci_jobs_variables_make_a_required_run(project, live_dsn):
    (block,) = blocks("tiers.md", "yaml")
    env = dict(re.findall(r'^  (PGSHARE_\w+): "?([^"\n]+)"?$', block, re.M))
    shape = conninfo.parse(env["PGSHARE_DSN"], name="tiers.md")
    real = conninfo.parse(live_dsn, name="live")
    assert env["PGSHARE_DSN"].startswith("postgresql://")
    assert set(shape) == {"host", "port", "user", "password", "dbname"}
    env["PGSHARE_DSN"] = drivers.url(real, "libpq")
    project.write(test_a="def test_live(pg_server, pg_conn): assert pg_server.origin == 'external'\n")
    assert project.run("-m", "pgtest", **env).code == 0
    assert project.run("-m", "podman", **env).code != 0


def test_an_adapter_is_registered_on_its_connection(project):
    result = project.write(test_a=python_block("drivers.md", "register_enum")).run("-m", "pgtest")
    assert result.code == 0, result.out


def test_leaks_fail_with_the_setting_that_isolation_names(project):
    (block,) = blocks("isolation.md", "ini")
    project.write(test_a=LEAK)
    assert project.run("-W", "default").code == 0
    (project.folder / "pytest.ini").write_text("[pytest]\n" + block)
    result = project.run()
    assert result.code == 1
    assert "ConnectionLeakWarning: test_a.py::test_a left 1 connection(s) open" in result.out


def test_the_one_block_that_another_file_runs_is_run_there():
    used = (ROOT / "tests/pgshare/test_drivers_django.py").read_text()
    assert 'python_block("drivers.md", "django_db_setup")' in used
    assert python_block("drivers.md", "django_db_setup")
