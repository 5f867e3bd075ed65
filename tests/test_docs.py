"""What the pages name exists, and what exists is named; every code block is run (tests/test_docs_run.py) or checked here."""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from typing import TYPE_CHECKING

from recipes import BEGIN, END, PAGES, ROOT, TABLES, find_page, settings_table

import harness
import pgshare
from harness import cli, exits
from pgshare.door import MARKERS, PG_FIXTURES
from pgshare.settings import OPTIONS

if TYPE_CHECKING:
    from pathlib import Path

MISSPELT = {"PGSHARE_DNS"}  # shown in docs/troubleshooting.md as a mistake
NOT_OURS = {"pg_dump"}  # Postgres's own names that look like fixtures
LATER = {"stack", "own_stack"}  # fixture names that the pages announce


@cache
def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def everything() -> str:
    return "\n".join(text(page) for page in PAGES)


@cache
def pytest_says(option: str) -> str:
    """What a pytest with nothing but our plugins says about itself."""
    quiet = ("no:cacheprovider", "no:randomly", "no:pytest_django", "no:asyncio", "no:anyio", "no:hypothesispytest", "no:xdist")
    plugins = [word for name in quiet for word in ("-p", name)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "-c", "/dev/null", "--rootdir", "/", option],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def verbs(parser: argparse.ArgumentParser, prefix: str = "harness") -> dict[str, argparse.ArgumentParser]:
    """Every complete command below ``parser``, by its words."""
    nested = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not nested:
        return {prefix: parser}
    return {name: found for word, sub in nested[0].choices.items() for name, found in verbs(sub, f"{prefix} {word}").items()}


COMMANDS = verbs(cli.build_parser())


def known_options() -> set[str]:
    own = {option for parser in COMMANDS.values() for action in parser._actions for option in action.option_strings}
    return own | set(re.findall(r"--[a-z][\w-]*", pytest_says("--help")))


def fixtures() -> set[str]:
    return set(re.findall(r"^(\w+)(?: \[\w+ scope\])? -- \S*(?:pgshare/door|harness/plugin)\.py", pytest_says("--fixtures"), re.M))


def test_the_settings_tables_are_those_of_the_code():
    for page in TABLES:
        (shown,) = re.findall(f"{re.escape(BEGIN)}(.*?){re.escape(END)}", text(find_page(page)), re.S)
        assert shown == settings_table(), f"{page}: run make docs"


def test_every_option_named_in_a_page_exists():
    named = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", everything()))
    assert named - known_options() == set()


def test_every_option_of_ours_is_named():
    own = {option for option in re.findall(r"--[a-z][\w-]*", pytest_says("--help")) if option.startswith(("--pg-", "--harness-"))}
    assert len(own) >= 14
    assert {option for option in own if not re.search(rf"{option}(?![\w-])", everything())} == set()


def test_every_variable_named_in_a_page_exists():
    known = {option.variable for option in OPTIONS} | set(re.findall(r'"(HARNESS_\w+)"', text(ROOT / "pgshare/deadline.py")))
    named = set(re.findall(r"\b(?:PGSHARE|HARNESS)_[A-Z_]+", everything()))
    assert named - known == MISSPELT
    assert known - named == set()


def test_every_fixture_named_in_a_page_exists_and_every_one_is_in_the_reference():
    assert fixtures() >= PG_FIXTURES
    named = set(re.findall(r"`(pg_[a-z_]+)\b", everything()))
    assert named - fixtures() - NOT_OURS == set()
    reference = text(ROOT / "docs/api.md")
    assert {name for name in fixtures() if f"\n| `{name}` |" not in reference} == set()
    assert not LATER & fixtures()


def test_every_marker_named_in_a_page_exists_and_every_one_is_in_the_reference():
    known = {line.partition(":")[0] for line in MARKERS}
    assert known <= set(re.findall(r"@pytest\.mark\.(\w+)", pytest_says("--markers")))
    selected = {word for chosen in re.findall(r"pytest -m (\"[^\"]*\"|\w+)", everything()) for word in re.findall(r"\w+", chosen)}
    assert selected - {"not", "or", "and"} == known
    assert {name for name in known if f"\n| `{name}` |" not in text(ROOT / "docs/api.md")} == set()


def test_every_public_name_is_in_the_reference():
    reference = text(ROOT / "docs/api.md")
    for package in (pgshare, harness):
        assert [name for name in package.__all__ if not re.search(rf"[`.]{name}\b", reference)] == []


def test_every_command_named_in_a_page_exists_and_every_one_is_listed():
    words = {words[0]: [key.split()[2:] for key in COMMANDS if key.split()[1] == words[0]] for words in map(_tail, COMMANDS)}
    for shown in re.findall(r"`harness ([a-z]+(?: [a-z|]+)?)", everything()):
        noun, _, verb = shown.partition(" ")
        assert noun in words, f"harness {shown}"
        for one in filter(None, verb.split("|")):
            assert [one] in words[noun], f"harness {shown}"
    listed = text(ROOT / "docs/cli.md")
    assert [name for name in COMMANDS if f"| `{name}" not in listed] == []


def _tail(command: str) -> list[str]:
    return command.split()[1:]


def test_the_exit_codes_are_those_of_the_code():
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", text(ROOT / "docs/cli.md"), re.M)}
    assert listed == {
        value for name, value in vars(exits).items() if name.isupper() and isinstance(value, int) and name != "SIGNAL"
    }


def test_relative_links_resolve():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", text(page)):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            found = (page.parent / name).resolve() if name else page
            assert found.exists(), f"{page.relative_to(ROOT)}: {target}"
            assert not anchor or anchor in anchors(found), f"{page.relative_to(ROOT)}: {target}"


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", text(page), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_page_is_in_the_index():
    index = text(ROOT / "docs/index.md")
    assert [page.name for page in (ROOT / "docs").glob("*.md") if page.name != "index.md" and f"({page.name})" not in index] == []


def test_every_file_has_its_line_in_the_architecture_page():
    page = text(ROOT / "docs/architecture.md")
    files = [path.name for package in ("pgshare", "harness") for path in (ROOT / package).glob("*.py")]
    assert [name for name in files if name != "__init__.py" and f"`{name}`" not in page] == []
    named = set(re.findall(r"`(\w+\.py)`", page))
    assert named - set(files) == set()


def test_what_a_console_block_shows_exists():
    """``$ pytest`` lines are run by test_docs_run.py and by make demo; here: make targets and extras."""
    targets = set(re.findall(r"^([a-z]+):", text(ROOT / "Makefile"), re.M))
    extras = tomllib.loads(text(ROOT / "pyproject.toml"))["project"]["optional-dependencies"]
    for line in re.findall(r"^\$ (.*)$", everything(), re.M):
        command, *words = line.partition("#")[0].split()
        assert command in ("make", "pip", "pytest"), line
        if command == "make":
            assert words[0] in targets, line
        for wanted in re.findall(r"pgshare\[([\w,]+)\]", line):
            assert set(wanted.split(",")) <= set(extras), line


def test_the_reference_has_the_errors_in_the_words_of_their_kind():
    """Every error class of the tree is public: a reader can catch what a page names."""
    tree = ast.parse(text(ROOT / "pgshare/errors.py"))
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    assert classes <= set(pgshare.__all__)
