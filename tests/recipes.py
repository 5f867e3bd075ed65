"""Code blocks of the documentation, so that tests run what people read."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of one language in README.md or a page below docs/."""
    path = ROOT / page if (ROOT / page).exists() else ROOT / "docs" / page
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.M | re.S)


def python_block(page: str, word: str) -> str:
    """The one Python block that holds ``word``."""
    (found,) = [block for block in blocks(page, "python") if word in block]
    return found
