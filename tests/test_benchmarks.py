from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import parts, projects, spawn, table


def sample(first: float, interval: float | None = None) -> spawn.Sample:
    return spawn.Sample(first=first, first_cpu=1.0, exit=1.0, whole=2.0, cpu=1.0, interval=interval)


def part(*rows: parts.Row, figure: str = "first") -> parts.Part:
    return parts.Part(name="p", title="T", figure=figure, rows=rows, variants=())


def test_a_comparison_pairs_the_rounds_and_knows_its_budget():
    rows = (
        parts.Row(name="base"),
        parts.Row(name="mine", against="base", extra_ms=20.0),
        parts.Row(name="twice", against="base", factor=1.5),
    )
    samples = {
        "base": [sample(100), sample(300), sample(110)],
        "mine": [sample(115), sample(310), sample(131)],
        "twice": [sample(200), sample(600), sample(220)],
    }
    _, mine, twice = table.compare(part(*rows), samples)
    assert (mine["extra_ms"], mine["quietest_extra_ms"], mine["within"]) == (15, 15, True)
    assert (twice["ratio"], twice["within"]) == (2.0, False)
    text = table.markdown("T", [mine, twice], 3)
    assert "+20 ms: kept" in text
    assert "1.5 x: OVER" in text


def test_a_run_is_measured_from_its_spawn_to_its_first_body(tmp_path):
    projects.write(tmp_path)
    command = projects.pytest_command(plugins=False)
    variant = spawn.Variant(name="empty", argv=command, folder=tmp_path / "empty", env={"BENCH_COUNT": "3"})
    found = spawn.run(variant, tmp_path / "stamps")
    assert 0 < found.first_cpu <= found.cpu
    assert found.first + found.exit <= found.whole
    assert found.interval is not None


def test_a_failed_run_is_no_figure(tmp_path):
    variant = spawn.Variant(name="broken", argv=[sys.executable, "-c", "print('why'); raise SystemExit(3)"], folder=tmp_path)
    with pytest.raises(spawn.FailedRunError, match=r"(?s)'broken' exited with 3 after 0 test bodies:\nwhy"):
        spawn.run(variant, tmp_path / "stamps")
