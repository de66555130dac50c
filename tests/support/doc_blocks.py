"""The code blocks of the documentation.

A block runs in the tests unless the line above it says `<!-- parsed: reason -->`; then its syntax and, of a command
line, its options are checked. Blocks without a language are command lines if every line begins with a known program.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAMS = {"easgd", "export", "git", "kill", "make", "mkdocs", "pip", "python", "ray", "torchrun"}
_BLOCK = re.compile(
    r"(?:^<!-- parsed: (?P<why>[^\n]+) -->\n+)?^```(?P<language>\w*)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """One fenced block; `why` says why it is only parsed, and is empty where it is run."""

    page: str
    line: int
    language: str
    text: str
    why: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def program(self) -> str:
        """The Python of the block; of a difference, what it leads to."""
        if self.language != "diff":
            return self.text
        return "".join(line[1:] for line in self.text.splitlines(keepends=True) if not line.startswith("-"))


def pages() -> list[Path]:
    """Return every page whose blocks are tested. Those of single runs repeat a command that took hours."""
    listed = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in listed if page.exists()]


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page in their order."""
    text, name = page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix()
    found = []
    for match in _BLOCK.finditer(text):
        language, body = match["language"], match["text"]
        if not language and all(words[0] in PROGRAMS for words in command_lines(body)):
            language = "sh"
        found.append(Block(name, text.count("\n", 0, match.start()) + 1, language, body, match["why"] or ""))
    return found


def command_lines(text: str) -> list[list[str]]:
    """Split a shell block into lines of words, without comments, `sudo` and assignments in front."""
    lines = []
    for line in text.replace("\\\n", " ").splitlines():
        words = re.sub(r"(^|\s)#.*", "", line).split()
        while words and (words[0] == "sudo" or re.match(r"[A-Z_]+=", words[0])):
            words = words[1:]
        if words:
            lines.append([word.strip("'\"") for word in words])
    return lines
