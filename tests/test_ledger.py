"""The ledger of rows: every proof is a test that exists, every row is known, and each is proved, out or open."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEDGERS = ROOT / "tests" / "ledgers"
Ledger = dict[str, dict[str, object]]


def read() -> Ledger:
    with (LEDGERS / "features.toml").open("rb") as file:
        return tomllib.load(file)


def known() -> list[str]:
    return [line for line in (LEDGERS / "known_ids.txt").read_text().splitlines() if not line.startswith("#")]


@cache
def collected() -> frozenset[str]:
    """Every test of this suite, without parameters, as a child process that selects nothing finds them."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PGSHARE_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "tests"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return frozenset(line.partition("[")[0] for line in done.stdout.splitlines() if "::" in line)


def status(row: str, ledger: Ledger) -> str:
    """What is said about one row: proved, part, out or open."""
    if row in ledger["out"]:
        return "out"
    if row in ledger["proved"]:
        return "part" if row in ledger["open"] else "proved"
    return "open"


def test_every_proof_is_a_collected_test():
    named = {test for tests in read()["proved"].values() for test in tests}
    assert sorted(named - collected()) == []


def test_every_row_is_known_and_has_proofs_or_a_note():
    ledger, ids = read(), known()
    assert set(ledger) == {"proved", "out", "open"}
    assert len(ids) == len(set(ids)) == 254
    for table in ledger.values():
        assert [row for row in table if row not in ids] == []
    for row, tests in ledger["proved"].items():
        assert isinstance(tests, list), row
        assert tests, row
        assert len(tests) == len(set(tests)), row
    assert [row for row, note in ledger["open"].items() if not (isinstance(note, str) and note)] == []


def test_a_row_that_is_out_names_a_page_or_an_example():
    ledger = read()
    assert [row for row, page in ledger["out"].items() if not (ROOT / str(page).partition("#")[0]).exists()] == []
    assert [row for row in ledger["out"] if row in ledger["proved"] or row in ledger["open"]] == []


def test_every_row_is_listed():
    """``make ledger`` shows what this prints."""
    ledger = read()
    rows = {row: status(row, ledger) for row in known()}
    print()
    for row, state in rows.items():
        proofs = ", ".join(map(str, ledger["proved"].get(row, ())))
        print(
            f"{row:6} {state:6} {ledger['out'].get(row) or '; '.join(filter(None, [ledger['open'].get(row, ''), proofs]))}".rstrip()
        )
    counts = {state: list(rows.values()).count(state) for state in ("proved", "part", "out", "open")}
    print(", ".join(f"{count} {state}" for state, count in counts.items()))
    assert sum(counts.values()) == len(rows)
