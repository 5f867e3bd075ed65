"""Code blocks and generated tables of the documentation, so that tests run what people read.

Run as a program (``make docs``) it writes the generated tables into the pages.
"""

from __future__ import annotations

import re
from pathlib import Path

from pgshare.settings import OPTIONS, Option

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("examples/*/*.md"))]
BEGIN, END = "<!-- settings: rendered from pgshare.settings.OPTIONS by make docs -->\n", "<!-- /settings -->"


def find_page(page: str) -> Path:
    """README.md, or a page below docs/."""
    return ROOT / page if (ROOT / page).exists() else ROOT / "docs" / page


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of one language in a page."""
    return re.findall(rf"^```{language}\n(.*?)^```", find_page(page).read_text(), re.M | re.S)


def python_block(page: str, word: str) -> str:
    """The one Python block that holds ``word``."""
    (found,) = [block for block in blocks(page, "python") if word in block]
    return found


def shown_messages() -> list[str]:
    """The messages of docs/troubleshooting.md, ``...`` for what varies."""
    cells = re.findall(r"^\| (`.+?`(?: or [^|]*)?) \| ", find_page("troubleshooting.md").read_text(), re.M)
    return [message for cell in cells for message in re.findall(r"`([^`]+)`", cell)]


def find_shown(output: str) -> str | None:
    """The message of docs/troubleshooting.md that ``output`` holds, whatever its line breaks."""
    flat = re.sub(r"\s+", " ", output.replace("\nE  ", " "))
    for message in shown_messages():
        if re.search(".*".join(re.escape(part.strip()) for part in message.split("...")), flat):
            return message
    return None


def _default(option: Option) -> str:
    if option.kind == "switch":
        return "off"
    if option.kind == "list":
        return "none"
    if option.name == "wait":
        return f"`{option.default:g}`, `30` when `CI` is set"
    if option.name == "state_dir":
        return "per user"
    return f"`{option.default:g}`" if isinstance(option.default, float) else f"`{option.default}`" if option.default else "none"


def _flag(option: Option) -> str:
    value = "" if option.kind == "switch" else f" {option.metavar or '{' + ','.join(option.choices) + '}'}"
    return f"`{option.flag}{value}`" if option.has_flag else "none"


def settings_table() -> str:
    """The table of every setting, from the one list in pgshare.settings."""
    lines = ["| option | variable | key | default | meaning |", "|---|---|---|---|---|"]
    for option in OPTIONS:
        key = f"`{option.name}`" if option.in_table else "none"
        meaning = re.sub(r" \(default[^)]*\)", "", option.help)
        lines.append(f"| {_flag(option)} | `{option.variable}` | {key} | {_default(option)} | {meaning} |")
    return "\n".join(lines) + "\n"


def with_table(text: str) -> str:
    """A page's text with the table between its two comment lines brought up to date."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN.strip()!r} ... {END!r}")
    return before + begin + settings_table() + end + after


TABLES = ("README.md", "settings.md")


if __name__ == "__main__":
    for name in TABLES:
        find_page(name).write_text(with_table(find_page(name).read_text()))
