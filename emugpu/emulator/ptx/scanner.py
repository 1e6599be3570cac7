"""Basic steps through the text of a PTX file."""

from __future__ import annotations

import re

from emugpu.emulator.errors import PtxSyntaxError

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_FILE = re.compile(r"\.file\s+(\d+)\s+\"([^\"\n]*)\"[^\n]*")
_PRAGMA = re.compile(r"(\.pragma\s+\")(?!used_bytes_mask)([^\"\n]*)(\")")
_WORD = re.compile(r"\.\w+|[%A-Za-z_$][\w$.:]*")
SPACE = re.compile(r"\s+")
_BRACE = re.compile(r"[{}]")


class Scanner:
    """A position in a text. ``at``: the next character. ``lines``: the original lines of the file, for messages."""

    def __init__(self, text: str) -> None:
        # Comments become spaces, so that offsets and line numbers remain those of the file.
        self.lines = text.splitlines()
        text = _PRAGMA.sub(lambda m: m[1] + " " * len(m[2]) + m[3], text)
        self.text = _COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)
        self.at = 0
        self.files: dict[str, str] = {}
        """Source files by their number (.file)."""

    def file(self) -> bool:
        """Takes a .file directive if one is next."""
        found = self.take(_FILE)
        if found:
            self.files[found[1]] = found[2]
        return found is not None

    def skip_space(self) -> bool:
        match = SPACE.match(self.text, self.at)
        if match:
            self.at = match.end()
        return self.at < len(self.text)

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self.text, self.at)
        if match:
            self.at = match.end()
        return match

    def word(self) -> str:
        match = _WORD.match(self.text, self.at)
        if not match:
            raise self.error(self.at, f"cannot understand '{self.text[self.at : self.at + 20].splitlines()[0]}'")
        self.at = match.end()
        return match.group()

    def value(self, pattern: re.Pattern[str]) -> str:
        """Takes what follows a directive: the first group of a pattern, or nothing."""
        found = self.take(pattern)
        return found[1] if found else ""

    def until(self, stop: str) -> str:
        end = self.text.find(stop, self.at)
        if end < 0:
            raise self.error(self.at, f"missing '{stop}'")
        found, self.at = self.text[self.at : end], end + 1
        return found

    def skip_braces(self, what: str = "") -> None:
        end = closing_brace(self.text, self.at)
        if end < 0:
            raise self.error(self.at, f"{what} has no closing brace" if what else "missing '}'")
        self.at = end

    def line(self, position: int) -> int:
        return self.text.count("\n", 0, position) + 1

    def error(self, position: int, message: str) -> PtxSyntaxError:
        return PtxSyntaxError(f"PTX line {self.line(position)}: {message}")


def closing_brace(text: str, start: int) -> int:
    """Returns the position after the brace that closes the first one from ``start`` on, or -1 if there is none."""
    depth = 0
    for match in _BRACE.finditer(text, start):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return match.end()
    return -1


def split(text: str) -> list[str]:
    """Splits operands at commas outside brackets and braces."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        if character in "[{(":
            depth += 1
        elif character in "]})":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    parts.append(text[start:].strip())
    return [part for part in parts if part]
