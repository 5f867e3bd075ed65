"""Medians and comparisons of what was measured, as data and as a Markdown table. Pure."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.parts import Part, Row
    from benchmarks.spawn import Sample


def compare(part: Part, samples: Mapping[str, Sequence[Sample]]) -> list[dict[str, object]]:
    """Return one entry per row: median, range, and against its base the paired difference and the ratio of medians.

    The difference is the median of the differences within each round, so that a slow minute of the machine hits both sides; the
    quietest rounds (least minus least) show the rest of it on a machine that others use too.
    """
    figures = {name: [float(getattr(sample, part.figure)) for sample in found] for name, found in samples.items()}
    return [_entry(row, figures) for row in part.rows]


def _entry(row: Row, figures: Mapping[str, Sequence[float]]) -> dict[str, object]:
    own = figures[row.name]
    entry: dict[str, object] = {
        "name": row.name,
        "median_ms": round(statistics.median(own), 2),
        "min_ms": round(min(own), 2),
        "max_ms": round(max(own), 2),
    }
    if row.against is None:
        return entry
    base = figures[row.against]
    extra = statistics.median(mine - theirs for mine, theirs in zip(own, base, strict=True))
    ratio = statistics.median(own) / statistics.median(base)
    entry |= {
        "against": row.against,
        "extra_ms": round(extra, 2),
        "quietest_extra_ms": round(min(own) - min(base), 2),
        "ratio": round(ratio, 3),
    }
    if row.extra_ms is not None:
        entry |= {"budget": f"+{row.extra_ms:g} ms", "within": extra <= row.extra_ms}
    if row.factor is not None:
        entry |= {"budget": f"{row.factor:g} x", "within": ratio <= row.factor}
    return entry


def markdown(title: str, entries: Sequence[Mapping[str, object]], rounds: int) -> str:
    """Return a table for people."""
    lines = [
        f"## {title}",
        "",
        f"Milliseconds, {rounds} interleaved rounds.",
        "",
        "| | median (min to max) | more than its base | by the quietest rounds | ratio | budget |",
        "|---|---|---|---|---|---|",
    ]
    lines += [_line(entry) for entry in entries]
    return "\n".join(lines) + "\n"


def _line(entry: Mapping[str, object]) -> str:
    spread = f"{entry['median_ms']:.1f} ({entry['min_ms']:.1f} to {entry['max_ms']:.1f})"
    if "against" not in entry:
        return f"| {entry['name']} | {spread} | | | | |"
    budget = f"{entry['budget']}: {'kept' if entry['within'] else 'OVER'}" if "budget" in entry else ""
    extra = f"{entry['extra_ms']:+.1f} ({entry['against']}) | {entry['quietest_extra_ms']:+.1f}"
    return f"| {entry['name']} | {spread} | {extra} | {entry['ratio']:.2f} | {budget} |"
