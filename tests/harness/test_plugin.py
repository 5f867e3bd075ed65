from __future__ import annotations

import subprocess
import sys

import pytest

TESTS = """
from pgshare.errors import NotReadyError
def test_fixture(wait_for, assert_never):
    assert wait_for(lambda: 7, owner="seven") == 7
    assert_never(lambda: False, owner="no", within=0.01)
"""
BUDGET = """
def test_budget(wait_for, request):
    from pgshare.deadline import hang_budget
    assert hang_budget(wait_for.keywords["env"]) == {}
"""
TABLE = "[tool.harness]\nhang_budget = {}\n"


@pytest.mark.parametrize(
    ("flag", "variable", "table", "budget"),
    [
        (None, None, None, 60),
        (None, None, "20", 20),
        (None, "30", "20", 30),
        ("40", "30", "20", 40),
        ("40", " ", None, 40),
        (None, "", "20", 20),
    ],
)
def test_flag_beats_variable_beats_file(project, flag, variable, table, budget):
    project.write(test_a=BUDGET.format(budget), pyproject=TABLE.format(table) if table else "")
    arguments = ["--harness-hang-budget", flag] if flag else []
    result = project.run("-n0", *arguments, HARNESS_HANG_BUDGET=variable)
    assert result.code == 0, result.out


def test_the_fixtures_work_in_workers_too(project):
    project.write(test_a=TESTS, test_b=BUDGET.format(60), pyproject=TABLE.format("20"))
    result = project.run("-W", "error", "-n", "2", HARNESS_TIMEOUT_SCALE="3")
    assert result.code == 0, result.out


@pytest.mark.parametrize(
    ("flag", "variable", "table", "message"),
    [
        ("3", None, None, "--harness-hang-budget must be a number of at least 10, got '3'; correct it or unset it"),
        (None, "3", None, "HARNESS_HANG_BUDGET must be a number of at least 10, got '3'; correct it or unset it"),
        (None, None, "3", "[tool.harness] hang_budget must be a number of at least 10, got 3; correct it or unset it"),
        (None, None, "true", "[tool.harness] hang_budget must be a number of at least 10, got True; correct it or unset it"),
    ],
)
def test_a_wrong_budget_is_named_as_it_was_written_before_any_test(project, flag, variable, table, message):
    project.write(test_a=TESTS, pyproject=TABLE.format(table) if table else "")
    arguments = ["--harness-hang-budget", flag] if flag else []
    result = project.run(*arguments, HARNESS_HANG_BUDGET=variable)
    assert (result.code, result.out.rstrip()) == (4, f"ERROR: harness: {message}")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("hang_bugdet = 20", "[tool.harness] has an unknown key 'hang_bugdet'; did you mean hang_budget?"),
        ("x = 1", "[tool.harness] has an unknown key 'x'; known: hang_budget"),
    ],
)
def test_an_unknown_key_is_an_error(project, table, message):
    project.write(test_a=TESTS, pyproject=f"[tool.harness]\n{table}\n")
    result = project.run()
    assert (result.code, result.out.rstrip()) == (4, f"ERROR: harness: {message}")


def test_a_wrong_scale_is_named(project):
    project.write(test_a=TESTS)
    result = project.run(HARNESS_TIMEOUT_SCALE="0.1")
    assert result.code == 4
    assert "ERROR: harness: HARNESS_TIMEOUT_SCALE must be a number of at least 1, got '0.1'" in result.out


def test_the_header_says_what_was_set_and_where_and_nothing_when_nothing_was(project):
    project.write(test_a="def test_a(): pass\n", pyproject=TABLE.format("20"))
    assert "\nharness: hang budget 40s ([tool.harness] hang_budget, HARNESS_TIMEOUT_SCALE)\n" in (
        project.run(HARNESS_TIMEOUT_SCALE="2").out
    )
    project.write(pyproject="")
    assert "\nharness:" not in project.run().out


def test_the_plugin_needs_no_other_of_ours(project):
    project.write(test_a=TESTS)
    assert project.run("-p", "no:pgshare", "-p", "no:xdist").code == 0


def test_importing_the_plugin_imports_only_what_pytest_has():
    code = "import sys, pytest; before = set(sys.modules); import harness.plugin; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"harness", "harness.plugin"}
