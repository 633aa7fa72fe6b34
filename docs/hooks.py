"""What mkdocs needs beside the pages: the README as one, and the package as it is installed."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
README = "overview.md"
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_startup(command: str, dirty: bool) -> None:
    """Copy the package as a wheel has it, for the reader of docstrings: it follows no links."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders: dict[str, str] = project["tool"]["setuptools"]["package-dir"]
    copies = ROOT / "build" / "api"
    shutil.rmtree(copies, ignore_errors=True)
    unread = shutil.ignore_patterns("__pycache__", "static", "*_pb2*")
    for name, folder in folders.items():
        place = copies / name.replace(".", "/")
        shutil.copytree(ROOT / folder, place, ignore=unread, dirs_exist_ok=True)


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the README, its links as seen from docs/."""
    text = (ROOT / "README.md").read_text()
    text = LINK.sub(lambda m: f"]({_from_docs(m[1])}{m[2] or ''})", text)
    files.append(File.generated(config, README, content=text))


def _from_docs(target: str) -> str:
    """A link of the README as a page of docs/ has it; links elsewhere stay as they are."""
    if "://" in target:
        return target
    return target.removeprefix("docs/") if target.startswith("docs/") else f"../{target}"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to the README to its page, and check those to other files of the repository."""

    def turned(match: re.Match[str]) -> str:
        target, anchor = match[1], match[2] or ""
        if not target.startswith("../"):
            return match[0]
        if target == "../README.md":
            return f"]({README}{anchor})"
        raise PluginError(
            f"{page.file.src_uri} links to {target}, which is no page; name it in `…`"
        )

    return LINK.sub(turned, markdown)
