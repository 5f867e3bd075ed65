"""Reproducible comparisons: ``python -m benchmarks``. What is measured and how is in docs/benchmarks.md."""

from __future__ import annotations
