"""Docstrings as Markdown: examples become blocks of code, and indices of x̃ stay what they are."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^>>> .*\n?(?:^.+\n?)*", re.MULTILINE)


def as_markdown(text: str) -> str:
    """Return a docstring such that Markdown shows it as it is meant.

    A line that begins with >>> would be a quotation, and "x̃_t … x̃_" would be italic: a combining tilde is no letter.
    """
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
    text = _EXAMPLE.sub(lambda match: f"```pycon\n{match[0].rstrip()}\n```\n", text)
    return re.sub(r"^(?! {4}).*", lambda line: line[0].replace("\u0303_", "\u0303\\_"), text, flags=re.MULTILINE)


class Docstrings(griffe.Extension):
    """Pass every docstring through `as_markdown`."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
