"""The documentation of routing agrees with the simulation, and its examples work."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

from benchmarks.celery_routing import RULES, simulate, table
from headway.integrations.celery import install
from tests.servers import Valkey

ROOT = Path(__file__).parents[3]


def test_the_page_shows_the_simulations_figures() -> None:
    # R4.39
    page = (ROOT / "docs" / "explain" / "celery-routing.md").read_text()
    assert table() in page


def test_least_loaded_alone_is_one_queue() -> None:
    # R4.39
    one, least, _, together, default, users = (simulate(rule) for rule in RULES.values())
    assert abs(one.p95 - least.p95) < 0.05 * one.p95
    assert abs(one.worst - least.worst) < 0.05 * one.worst
    for protecting in (together, default, users):
        assert protecting.worst < one.p95 / 20


def test_the_how_to_works_as_pasted(server: Valkey, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "celery.md").read_text()
    shop, *scripts = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "shop.py").write_text(shop.replace("redis://localhost:6379/0", f"{server.url}/0"))
    look = "from headway.integrations.celery import get_all_queue_loads as look"
    count = "print(sum(map(sum, look().values())))"
    (tmp_path / "all.py").write_text("\n".join([*scripts, look, count]))
    done = subprocess.run([sys.executable, "all.py"], cwd=tmp_path, capture_output=True, text=True, timeout=50)
    assert (done.stdout, done.returncode) == ("1002\n", 0), done.stderr


def test_the_example_works(server: Valkey) -> None:
    environment = {**os.environ, "BROKER_URL": f"{server.url}/0"}
    folder = ROOT / "examples" / "celery"
    done = subprocess.run(
        [sys.executable, "bulk.py"], cwd=folder, env=environment, capture_output=True, text=True, timeout=50
    )
    found = [int(number) for number in re.findall(r"queue_\d+: (\d+) pending, 0 running", done.stdout)]
    assert sum(found) == 1_001, done.stderr
    assert 4 <= len(found) <= 5


def test_every_option_of_install_is_in_the_how_to() -> None:
    page = (ROOT / "docs" / "how-to" / "celery.md").read_text()
    for name in inspect.signature(install).parameters:
        assert name == "app" or f"`{name}`" in page, name
