"""The page on benchmarks shows the figures of a run as they are."""

from typing import Any

from benchmarks.growth import STEPS
from benchmarks.page import AXES, END, PAGE, begin, section

MACHINE = {
    "date": "2026-11-19", "arguments": "--only growth --json f.json", "processor": "a processor", "cores": 2,
    "python": "3.11", "stores": ["SQLite"], "load": 0.5, "spin_ms": 7.2, "spin_after_ms": 7.4,
}  # fmt: skip


def test_growth_is_shown_beside_the_first_step_of_each_store() -> None:
    figures: dict[str, Any] = {
        "machine": MACHINE,
        "growth": {
            "redis": {"waiting": {"1000": {"us": 20.0}, "10000": {"us": 25.0}}},
            "sqlite": {"waiting": {"1000": {"us": 30.0}}, "tenants": {"1": {"us": 40.0}}},
        },
        "plan_us": {"1": 21.4},
    }
    lines = [*section(figures)]
    assert 'Taken on 2026-11-19 with `make bench ARGS="--only growth"`:' in lines
    assert lines[-6:] == [
        "| | redis | sqlite |",
        "|---|---:|---:|",
        "| waiting jobs: 1,000 | 20 (1.00 ×) | 30 (1.00 ×) |",
        "| waiting jobs: 10,000 | 25 (1.25 ×) |  |",
        "| tenants: 1 |  | 40 (1.00 ×) |",
        "\nA worker's plan takes 21 µs with 1 classes.",
    ]


def test_each_axis_has_a_title_and_each_part_its_place_on_the_page() -> None:
    assert AXES.keys() == STEPS.keys()
    page = PAGE.read_text()
    assert [page.count(begin(part)) for part in ("run", "growth")] == [1, 1]
    assert page.count(END) == 2
