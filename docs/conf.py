"""The documentation site, which ``make docs`` builds from the Markdown of this folder.

The pages stay readable without it: links between pages name files, and links to other files of the repository become
links to the repository's address here. Nothing on the site comes from another origin.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path

from sphinx.addnodes import toctree
from sphinx.application import Sphinx

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT / "src"))

from headway.version import __version__  # noqa: E402 - the package is beside this folder

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCES = f"{PROJECT['urls']['Source']}/blob/main/"

project = "Headway"
author = "The Headway authors"
copyright = author
release = __version__
version = ".".join(release.split(".")[:2])
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
exclude_patterns = ["images", "explain/images"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # Pages begin sections where GitHub shows them best.
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "undoc-members": False}
python_use_unqualified_type_names = True
nitpicky = False

html_theme = "furo"
html_title = f"Headway {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "../web/src/icon.svg"
html_copy_source = False  # llms.txt names the Markdown of each page, which is copied beside it.
templates_path = ["_templates"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
        "sidebar/versions.html",
    ]
}
html_context = {"versions": json.loads((DOCS / "versions.json").read_text())}

_OUTSIDE = re.compile(
    r"\]\((?:\.\./)+((?:README|CONTRIBUTING|CHANGELOG|SECURITY|CODE_OF_CONDUCT)\.md|LICENSE|(?:examples|deploy|src|tests|benchmarks|scripts)\b[^)\s]*)\)"
)
_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)
_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")


def link_to_sources(_: Sphinx, docname: str, source: list[str]) -> None:
    """Replace links to files outside this folder by links to the repository."""
    source[0] = _OUTSIDE.sub(lambda found: f"]({SOURCES}{found[1]})", source[0])


def write_texts(app: Sphinx, problem: Exception | None) -> None:
    """Copy the Markdown of each page beside it, and write llms.txt, which lists them by section."""
    if problem is not None or app.builder.name != "html":
        return
    lines = ["# Headway", "", f"> {PROJECT['description']}"]
    for section in app.env.get_doctree("index").findall(toctree):
        lines += ["", f"## {section['caption']}", ""]
        for name in section["includefiles"]:
            lines += [_entry(app, name), *(_entry(app, below) for below in app.env.toctree_includes.get(name, []))]
    Path(app.outdir, "llms.txt").write_text("\n".join(lines) + "\n")


def _entry(app: Sphinx, name: str) -> str:
    """Copy the Markdown of a page, and return its line in llms.txt: its title and the first sentence of its text."""
    text = (DOCS / f"{name}.md").read_text()
    Path(app.outdir, f"{name}.md").write_text(text)
    return f"- [{_TITLE.search(text)[1]}]({name}.md): {_first_sentence(text)}"


def _first_sentence(text: str) -> str:
    """Return the first sentence that is not in a heading, a block of code, a table, a list or a line of links."""
    for paragraph in _CODE.sub("", text).split("\n\n"):
        plain = " ".join(_LINK.sub(r"\1", paragraph).replace("**", "").split())
        if re.match(r"[A-Za-z`]", plain) and plain.endswith((".", ":", "?")):
            return re.split(r"(?<=[.?])\s", plain)[0]
    return ""


def setup(app: Sphinx) -> None:
    app.connect("source-read", link_to_sources)
    app.connect("build-finished", write_texts)
