"""The benchmarks can report the version of what they measure."""

import importlib
import importlib.metadata

import pytest


@pytest.mark.parametrize("module", ["benchmarks.ours", "benchmarks.features.app", "benchmarks.workflows.app"])
def test_the_distributions_of_headway_are_installed(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_STORE", "memory://")
    monkeypatch.setenv("BENCH_VARIANT", "plain")
    names = importlib.import_module(module).PACKAGES
    assert [name for name in names if not importlib.metadata.version(name)] == []
