"""Building and serving the dashboard: its size, headers and addresses, and the settings that turn it off."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from headway import Headway
from headway.server.api import headway_api
from headway.server.guard import CSP
from headway.server.web.dashboard import STATIC
from tests.server.conftest import client_for

ROOT = Path(__file__).resolve().parents[2]
JS_MAX, CSS_MAX = 60_000, 10_000  # Bytes, compressed.
ASSETS = re.compile(r'(?:src|href)="([^"]+)"')


def test_the_bundle_is_small() -> None:
    (script,) = STATIC.glob("*/app.js")
    (style,) = STATIC.glob("*/app.css")
    sizes = {file.name: len(gzip.compress(file.read_bytes(), mtime=0)) for file in (script, style)}
    assert 10_000 < sizes["app.js"] <= JS_MAX, sizes
    assert 1_000 < sizes["app.css"] <= CSS_MAX, sizes


def test_the_bundle_names_no_other_site_and_needs_no_exception_from_the_policy() -> None:
    for file in STATIC.glob("*/*.js"):
        text = file.read_text()
        # Namespaces of XML are names, not addresses.
        assert set(re.findall(r"https?://[\w./]+", text)) <= {
            "http://www.w3.org/2000/svg",
            "http://www.w3.org/1999/xhtml",
            "http://www.w3.org/1998/Math/MathML",
        }
        assert not re.search(r"\beval\(|new Function\(|document\.write|insertAdjacentHTML|createPolicy", text)


def test_the_built_files_carry_the_licences_of_what_is_in_them() -> None:
    licences = (STATIC / "LICENSES.txt").read_text()
    assert licences.count("Permission is hereby granted, free of charge") == 4


def test_the_lock_file_pins_every_package_by_hash_and_names_no_registry() -> None:
    lock = json.loads((ROOT / "web" / "package-lock.json").read_text())
    packages = {name: package for name, package in lock["packages"].items() if name}
    assert len(packages) > 10
    assert [name for name, package in packages.items() if "integrity" not in package] == []
    assert [name for name, package in packages.items() if "resolved" in package] == []
    wanted = json.loads((ROOT / "web" / "package.json").read_text())
    versions = {**wanted["dependencies"], **wanted["devDependencies"]}
    assert {name: packages[f"node_modules/{name}"]["version"] for name in versions} == versions


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Headway]:
    async with Headway(f"sqlite:///{tmp_path}/headway.db", ui_label="a & <b>") as made:
        yield made


@pytest.fixture
async def http(app: Headway) -> AsyncIterator[httpx.AsyncClient]:
    async with client_for(headway_api(app, hosts=["testserver"], ui=True)) as client:
        yield client


@pytest.mark.parametrize("path", ["", "jobs", "jobs/01999e2f-9d1c-7cc0-8a1e-5f1d6c3b2a10", "nowhere/at/all"])
async def test_every_address_gets_the_page_with_files_that_exist(http: httpx.AsyncClient, path: str) -> None:
    page = await http.get(f"/ui/{path}")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["content-security-policy"] == CSP
    assert "require-trusted-types-for 'script'" in CSP
    assert page.headers["cache-control"] == "no-store"
    assert '<meta name="headway-label" content="a &amp; &lt;b&gt;">' in page.text
    found = ASSETS.findall(page.text)
    assert len(found) == 4
    for address in found:
        file = await http.get(str(page.url.join(address)))
        assert file.status_code == 200
        assert file.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert file.headers["content-encoding"] == "gzip"
        assert file.headers["content-security-policy"] == CSP


async def test_a_file_is_sent_as_it_is_to_clients_that_cannot_unpack(http: httpx.AsyncClient) -> None:
    (script,) = STATIC.glob("*/app.js")
    address = f"/ui/{script.relative_to(STATIC).as_posix()}"
    plain = await http.get(address, headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.content == script.read_bytes()
    assert plain.headers["content-type"].startswith("text/javascript")


async def test_a_file_of_another_release_is_missing(http: httpx.AsyncClient) -> None:
    answer = await http.get("/ui/0123456789ab/app.js")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert answer.headers["cache-control"] == "no-store"


async def test_browsers_are_sent_to_the_dashboard(http: httpx.AsyncClient) -> None:
    for address in ("/", "/ui"):
        answer = await http.get(address, headers={"Accept": "text/html"})
        assert (answer.status_code, answer.headers["location"]) == (307, "ui/")
    program = await http.get("/", headers={"Accept": "application/json"})
    assert program.status_code == 404


async def test_an_api_without_the_dashboard_has_no_such_address(app: Headway) -> None:
    async with client_for(headway_api(app, hosts=["testserver"])) as client:
        assert (await client.get("/ui/")).status_code == 404
        assert (await client.get("/", headers={"Accept": "text/html"})).status_code == 404


async def test_it_works_below_a_prefix(app: Headway) -> None:
    outer = FastAPI()
    outer.mount("/queue", headway_api(app, hosts=["testserver"], ui=True))
    async with client_for(outer) as client:
        page = await client.get("/queue/ui/jobs/x")
        for address in ASSETS.findall(page.text):
            assert (await client.get(str(page.url.join(address)))).status_code == 200
        home = await client.get("/queue/", headers={"Accept": "text/html"})
        assert str(home.url.join(home.headers["location"])) == "http://testserver/queue/ui/"


async def test_a_checkout_without_the_built_files_says_how_to_build_them(
    app: Headway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.server.web.dashboard.STATIC", tmp_path)
    async with client_for(headway_api(app, hosts=["testserver"], ui=True)) as client:
        assert "Run: make web" in (await client.get("/ui/")).text


def test_the_setting_turns_it_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headway.client.settings import load_settings

    def settings(**environment: str) -> Any:
        return load_settings(environment=environment, folder=tmp_path)

    assert settings().ui is True
    assert settings(HEADWAY_UI="false").ui is False
    assert settings(HEADWAY_UI_LABEL="production").ui_label == "production"
