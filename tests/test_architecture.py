"""The house's own rules: what importing costs, which names are public, who may import whom."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import harness
import pgshare

ROOT = Path(__file__).parents[1]
HEAVY = {"psycopg", "podman", "anyio", "filelock", "asyncio", "sqlalchemy", "tomllib", "importlib.metadata"}
LEAN = ("keeper", "component", "child", "datadir", "inventory", "reaper", "wire", "watch", "lock", "deadline", "errors")
# What `python -I -S -E` has loaded before our first line, and what the keeper may add to it.
OS = {"os", "stat", "_stat", "posixpath", "genericpath", "_collections_abc", "abc", "_abc", "io"}  # what "import os" brings
ALLOWED = OS | {"__future__", "_socket", "select", "struct", "_struct", "marshal", "fcntl", "errno", "time", "_signal", "pgshare"}
PUBLIC = {
    "pgshare": [
        "ConnectionLeakWarning", "Database", "InventoryError", "KeeperError", "LeftoverError", "NotReadyError", "OriginUnavailableError",
        "PgshareError", "Postgres", "RefusedError", "Schema", "ServerStartError", "SettingError", "Settings", "TemplateError",
        "acquire_dsn", "isolated_schema", "start_suite_postgres", "suite_postgres",
    ],
    "harness": ["HarnessError", "assert_never", "wait_for"],
}  # fmt: skip


def child(code, *flags):
    done = subprocess.run([sys.executable, *flags, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("module", ["pgshare", "harness", "pgshare.plugin", "harness.plugin"])
def test_importing_it_loads_nothing_that_pytest_has_not(module):
    before = set(child("import sys, pytest, _pytest.pytester; print(*sys.modules)"))
    after = set(child(f"import sys, pytest, _pytest.pytester, {module}; print(*sys.modules)"))
    assert not HEAVY & (after - before)
    added = {name for name in after - before if not name.startswith(("pgshare", "harness"))}
    assert added == set(), f"{module} loads {sorted(added)}"


def test_a_run_without_live_tests_loads_no_driver(tmp_path):
    (tmp_path / "test_a.py").write_text("def test_a(): import sys; print('LOADED', *sys.modules)\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", "-p", "no:anyio", "-p", "no:asyncio", "-p", "no:xdist",
         "-p", "no:randomly", "-p", "no:pytest_django", "-p", "no:hypothesispytest", "--rootdir", str(tmp_path), str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    (line,) = [line for line in done.stdout.splitlines() if "LOADED" in line]
    assert not {"psycopg", "podman", "anyio", "filelock"} & set(line.split())


BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("psycopg", "psycopg_binary", "podman", "anyio", "filelock"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
"""


def test_unit_tests_pass_where_no_driver_and_no_podman_is_installed(project):
    project.write(test_a="def test_unit(): pass\ndef test_live(pg_conn): pass\n", sitecustomize=BLOCKED)
    result = project.run("-m", "not (pgtest or podman)", PYTHONPATH=str(project.folder))
    assert result.code == 0, result.out
    assert (result.count("passed"), result.count("deselected")) == (1, 1)


@pytest.mark.parametrize("module", LEAN)
def test_the_keepers_modules_load_next_to_nothing(module):
    code = "import sys; before = set(sys.modules); sys.path.append({root!r}); import pgshare.{module}; print(*(set(sys.modules) - before))"
    added = set(child(code.format(root=str(ROOT), module=module), "-I", "-S", "-E"))
    assert {name for name in added if name.partition(".")[0] not in ALLOWED} == set()


@pytest.mark.parametrize("package", [pgshare, harness], ids=["pgshare", "harness"])
def test_public_names_are_exactly_these_and_every_one_resolves(package):
    assert package.__all__ == sorted(PUBLIC[package.__name__])
    for name in package.__all__:
        assert getattr(package, name).__name__ == name
        assert name in dir(package)
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'acquire_dns'"):
        _ = package.acquire_dns


@pytest.mark.parametrize("package", [pgshare, harness], ids=["pgshare", "harness"])
def test_type_checkers_see_the_same_names(package):
    tree = ast.parse(Path(package.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name)]
    seen = {alias.asname: node.module for node in block.body for alias in node.names}
    assert {name: f"{package.__name__}.{home}" for name, home in package._HOME.items()} == seen


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def test_only_the_plugins_know_pytest_and_nobody_knows_podman_or_anyio_yet():
    for path in [*(ROOT / "pgshare").glob("*.py"), *(ROOT / "harness").glob("*.py")]:
        found = set(imports(path))
        assert not found & {"podman", "anyio"}, path
        assert "pytest" not in found or path.name in ("plugin.py", "door.py"), path
        assert "_pytest" not in found, path


def test_who_runs_the_server_is_decided_in_one_place():
    """A server's origin is compared in acquire.py; elsewhere only to say it, and in schema.py to know whether the server is ours."""
    found = Counter()
    for path in [*(ROOT / "pgshare").glob("*.py"), *(ROOT / "harness").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute) and node.left.attr == "origin":
                found[path.name] += 1
    del found["acquire.py"]
    assert found == {"report.py": 1, "schema.py": 1}


def test_the_import_contracts_hold():
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert done.returncode == 0, done.stdout


def test_files_stay_readable():
    for path in [*ROOT.glob("pgshare/*.py"), *ROOT.glob("harness/*.py"), *ROOT.glob("tests/**/*.py")]:
        assert len(path.read_text().splitlines()) <= 450, path


def test_nothing_sleeps_to_wait():
    for path in [
        *ROOT.glob("pgshare/*.py"),
        *ROOT.glob("harness/*.py"),
        *ROOT.glob("tests/**/*.py"),
        *ROOT.glob("examples/**/*.py"),
    ]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr == "sleep" and isinstance(node.value, ast.Name):
                assert (path.name, node.value.id) == ("deadline.py", "time") or (
                    path.parent.name == "pgshare" and path.name == "test_deadline.py"
                ), f"{path}:{node.lineno}"
