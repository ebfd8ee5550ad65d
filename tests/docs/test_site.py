"""The documentation site: it builds without a warning, has every page, and loads nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import headway
from headway import errors, testing
from headway.version import __version__

ROOT = Path(__file__).parents[2]
PAGES = sorted(page.relative_to(ROOT / "docs").with_suffix("") for page in (ROOT / "docs").rglob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-d", f"{folder}/read"]
    done = subprocess.run([*command, "docs", f"{folder}/out"], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder / "out"


@pytest.mark.timeout(300)
def test_every_page_is_on_the_site_and_in_its_navigation(site: Path) -> None:
    navigation = (site / "index.html").read_text()
    for page in PAGES:
        assert (site / f"{page}.html").exists(), page
        if page.name != "index" and page.parts[0] not in ("design", "origins"):
            assert f'href="{page}.html"' in navigation, page


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text()
        loaded = re.findall(r'<(?:script|img|iframe)[^>]*\bsrc="([^"]+)"', text)
        loaded += re.findall(r'<link[^>]*\brel="(?:stylesheet|preload|icon)"[^>]*\bhref="([^"]+)"', text)
        assert loaded, page
        assert [address for address in loaded if "//" in address] == [], page
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", style.read_text()), style


def test_the_site_has_search_versions_and_the_public_names(site: Path) -> None:
    assert "add.enqueue" not in (site / "searchindex.js").read_text()
    assert "simulat" in (site / "searchindex.js").read_text()
    version = ".".join(__version__.split(".")[:2])
    assert f"<strong>{version}</strong>" in (site / "index.html").read_text()
    reference = (site / "reference" / "api.html").read_text()
    exported = {name: module for module in (errors, testing, headway) for name in module.__all__ if name[0] != "_"}
    for name, module in exported.items():
        places = {f'id="{module.__name__}.{name}"', f'id="headway.errors.{name}"'}
        assert any(place in reference for place in places), name


def test_programs_find_the_text_of_every_page(site: Path) -> None:
    listed = re.findall(r"^- \[[^\]]+\]\(([^)]+)\)", (site / "llms.txt").read_text(), re.MULTILINE)
    assert sorted(listed) == [f"{page}.md" for page in PAGES if str(page) != "index"]
    for page in listed:
        assert (site / page).read_text() == (ROOT / "docs" / page).read_text()


def test_the_list_for_programs_says_in_a_sentence_what_each_page_is_about(site: Path) -> None:
    text = (site / "llms.txt").read_text()
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == re.findall(
        r"^:caption: (.+)$", (ROOT / "docs" / "index.md").read_text(), re.MULTILINE
    )
    for line in re.findall(r"^- .+$", text, re.MULTILINE):
        assert re.search(r"\.md\): [A-Z`](?:\S* ){3,}.*[.:?]$", line), line
