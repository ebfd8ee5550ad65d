"""The documentation site: it builds without a warning, has every page, and loads nothing from other sites."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

import headway
from headway import errors, testing
from headway.version import __version__
from tests.web.browser import launch_options

ROOT = Path(__file__).parents[2]
SPLIT = """
[...document.querySelectorAll("article code .pre")]
  .filter((word) => word.textContent.startsWith("--") && word.getBoundingClientRect().height > 28)
  .map((word) => word.textContent)
"""
PAGES = sorted(page.relative_to(ROOT / "docs").with_suffix("") for page in (ROOT / "docs").rglob("*.md"))


pytestmark = pytest.mark.timeout(300)  # Whichever test comes first builds the site.


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-d", f"{folder}/read"]
    done = subprocess.run([*command, "docs", f"{folder}/out"], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder / "out"


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


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1200])
def test_no_page_is_wider_than_the_window_and_options_stay_whole(site: Path, width: int) -> None:
    with sync_playwright() as started:
        browser = started.chromium.launch(**launch_options())
        page = browser.new_page(viewport={"width": width, "height": 900})
        for name in PAGES:
            page.goto((site / f"{name}.html").as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            if width > 1_000:  # On a phone the longest ones do not fit into a column of a table.
                assert page.evaluate(SPLIT) == [], name
        browser.close()


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
        assert re.search(r"\.md\): [A-Za-z`](?:\S* ){3,}.*[.:?]$", line), line
    assert "origins/fasdis.md): fasdis is an async job queue for FastAPI" in text  # Its name has no capital.


def a_tree(folder: Path, version: str, versions: str) -> None:
    """Write a tree with the site's configuration and one page."""
    for part in ("docs/_static", "docs/_templates"):
        shutil.copytree(ROOT / part, folder / part, dirs_exist_ok=True)
    for file in ("docs/conf.py", "pyproject.toml", "scripts/build_site.py", "web/src/icon.svg"):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, folder / file)
    (folder / "src/headway").mkdir(parents=True, exist_ok=True)
    (folder / "src/headway/__init__.py").write_text("")
    (folder / "src/headway/version.py").write_text(f'__version__ = "{version}"\n')
    (folder / "docs/versions.json").write_text(versions)
    (folder / "docs/index.md").write_text(f"# Headway\n\nThese are the pages of {version}.\n")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_site_of_all_versions_is_built_from_their_newest_tags(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words], cwd=tmp_path, check=True)

    def build() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "scripts/build_site.py"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    git("init", "--quiet")
    for version in ("0.1.9", "0.1.10"):
        a_tree(tmp_path, version, '[{"name": "0.1", "path": "0.1"}]')
        git("add", "--all")
        git("commit", "--quiet", "--message", version)
        git("tag", f"v{version}")
    a_tree(tmp_path, "0.2.0", '[{"name": "0.2", "path": "0.2"}, {"name": "0.1", "path": "0.1"}]')

    done = build()

    assert (done.returncode, done.stdout) == (0, "0.2: this tree\n0.1: v0.1.10\n"), done.stderr
    site = tmp_path / "build" / "site"
    pages = {name: (site / name / "index.html").read_text() for name in ("0.1", "0.2")}
    assert "These are the pages of 0.1.10." in pages["0.1"]
    assert "These are the pages of 0.2.0." in pages["0.2"]
    assert re.search(r"<strong>0\.1</strong>", pages["0.1"])
    assert '/../0.2/">0.2</a>' in pages["0.1"]
    assert '/../0.1/">0.1</a>' in pages["0.2"]
    assert 'content="0; url=0.2/"' in (site / "index.html").read_text()

    git("tag", "--delete", "v0.1.9", "v0.1.10")
    assert "which has no tag v0.1.*" in build().stderr
