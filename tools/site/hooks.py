"""What mkdocs does besides: generated pages, the rest of the navigation, links out of docs/, mathematics as MathML."""

from __future__ import annotations

import html
import os
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
import pages  # beside this file

ROOT = Path(__file__).resolve().parents[2]
REST = "Guides"
"""The section of the navigation that takes pages of docs/ which mkdocs.yml does not name."""
_LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
_MATH = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
# What a browser would fetch by itself. A link that a reader may click is none.
_FETCHED = re.compile(r"""<(?:script|img|iframe|source|link)\b[^>]*?\b(?:src|href)=["'](https?:)?//""")


def on_config(config: Any) -> Any:
    """Complete the navigation."""
    sections = {name: entries for each in config.nav for name, entries in each.items() if isinstance(entries, list)}
    named = set(re.findall(r"[\w/.-]+\.md", str(config.nav)))
    docs = Path(config.docs_dir)
    found = [path.relative_to(docs).as_posix() for path in sorted(docs.glob("*.md"))]
    sections[REST] += [path for path in found if path not in named]
    reproduced = [path.relative_to(docs).as_posix() for path in sorted(docs.glob("reproduction/*/*/README.md"))]
    sections["Paper"].append({"Runs": reproduced})
    made = pages.generated()
    sections["Reference"] += [name for name in made if name.startswith("reference/")]
    sections["Tutorials"].append({"Notebooks": [name for name in made if name.startswith("notebooks/")]})
    sections["Tutorials"].append({"Examples": [name for name in made if name.startswith("examples/")]})
    sections["Project"] += [name for name in made if name.startswith("project/")]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    for name, text in pages.generated().items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links that leave docs/ to the page of the site that shows the file."""
    # Search finds pages for readers first, and the source of tests not at all.
    boost = 1.0 if page.file.generated_by else 3.0 if page.file.src_uri.startswith("tutorials/") else 2.0
    page.meta["search"] = {"exclude": True} if page.file.src_uri.startswith("tests/") else {"boost": boost}
    folder = posixpath.dirname(page.file.src_uri)
    if page.file.generated_by:  # it was written for the root of the repository
        here, base = posixpath.dirname(page.file.src_uri), pages.origin(page.file.src_uri)
    else:
        here, base = folder, posixpath.join("docs", folder)

    def replace(match: re.Match[str]) -> str:
        target = match[2]
        if re.match(r"\w+:", target):
            return match[0]
        path = posixpath.normpath(posixpath.join(base, target))
        if path.startswith("docs/") and not page.file.generated_by:
            return match[0]
        inside = pages.place(path)
        if inside is None or files.get_file_from_path(inside) is None:
            return match[0]  # mkdocs warns of it
        return match[1] + posixpath.relpath(inside, here or ".") + match[3]

    return _LINK.sub(replace, markdown)


def on_page_content(html_: str, **_: Any) -> str:
    """Write mathematics as MathML, which browsers show without a script."""

    def replace(match: re.Match[str]) -> str:
        display = "block" if match[2] == "[" else "inline"
        return convert(html.unescape(match[3]).strip(), display=display)

    return _MATH.sub(replace, html_)


def on_post_build(config: Any) -> None:
    """Refuse a site that would ask another machine for anything."""
    for folder, _, names in os.walk(config.site_dir):
        for name in names:
            if name.endswith(".html") and (found := _FETCHED.search(Path(folder, name).read_text(encoding="utf-8"))):
                raise PluginError(f"{Path(folder, name)} asks another machine: {found[0]}")
