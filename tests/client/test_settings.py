"""Settings: their sources, which source wins, and the message for a wrong value."""

import warnings
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headway import Headway
from headway.client.settings import Settings, gather, load_settings
from headway.core.errors import ConfigError, UnknownOption


def test_the_defaults_are_the_documented_ones(tmp_path: Path) -> None:
    settings = load_settings(environment={}, folder=tmp_path)
    assert (settings.store, settings.namespace) == ("sqlite:///headway.db", "default")
    assert (settings.slots, settings.reserved) == (5, 1)  # R5.18
    assert (settings.heartbeat, settings.dead_after, settings.payload_max) == (30, 90, 1 << 20)  # R5.16
    assert settings.host == "127.0.0.1"


def test_arguments_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "headway.toml").write_text('slots = 2\ngrace = 3\nnamespace = "file"\nstore = "memory://"\n')
    environment = {"HEADWAY_SLOTS": "4", "HEADWAY_NAMESPACE": "environment", "PATH": "/bin"}
    found = gather({"slots": 8, "heartbeat": None}, environment, tmp_path)
    file = str(tmp_path / "headway.toml")
    assert found == {
        "slots": (8, "argument"),
        "namespace": ("environment", "HEADWAY_NAMESPACE"),
        "grace": (3.0, file),
        "store": ("memory://", file),
    }
    settings = load_settings({"slots": 8}, environment=environment, folder=tmp_path)
    assert (settings.slots, settings.namespace, settings.grace) == (8, "environment", 3)


def test_an_app_reads_them_where_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "headway.toml").write_text("slots = 7")
    monkeypatch.setenv("HEADWAY_STORE", "memory://")
    app = Headway()
    assert (app.settings.store, app.settings.slots) == ("memory://", 7)
    assert Headway("sqlite:///other.db", slots=9).settings.slots == 9
    app.configure(slots=3, grace=None)
    assert (app.settings.store, app.settings.slots, app.settings.reserved) == ("memory://", 3, 1)


# R1.6, R1.28, R1.29
def test_the_old_names_of_the_limits_still_work(tmp_path: Path) -> None:
    old = {"MAX_CONCURRENT_TASKS": "3", "HIGH_PRIORITY_RESERVED": "2"}
    settings = load_settings(environment=old, folder=tmp_path)
    assert (settings.slots, settings.reserved) == (3, 2)
    both = old | {"HEADWAY_SLOTS": "9"}
    assert load_settings(environment=both, folder=tmp_path).slots == 9
    assert load_settings(environment=dict(reversed(both.items())), folder=tmp_path).slots == 9


@pytest.mark.parametrize("variable", ["MAX_CONCURRENT_TASKS", "HIGH_PRIORITY_RESERVED", "HEADWAY_SLOTS"])
@pytest.mark.parametrize("text", ["three", "2.5", "1e3", "0x10"])
def test_a_number_that_is_none_is_refused_with_the_name_of_the_setting(
    tmp_path: Path, variable: str, text: str
) -> None:
    with pytest.raises(ConfigError, match=f"{variable}: expected a whole number, not {text!r}"):
        load_settings(environment={variable: text}, folder=tmp_path)


@pytest.mark.parametrize(
    "environment",
    [
        {"MAX_CONCURRENT_TASKS": "3", "HIGH_PRIORITY_RESERVED": "3"},
        {"MAX_CONCURRENT_TASKS": "3", "HIGH_PRIORITY_RESERVED": "4"},
        {"HEADWAY_SLOTS": "1", "HEADWAY_RESERVED": "1"},
        {"HEADWAY_RESERVED": "-2"},
    ],
)
def test_the_reserve_must_leave_room(tmp_path: Path, environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="reserved must be at least 0 and less than slots"):
        load_settings(environment=environment, folder=tmp_path)


# R1.27
def test_one_slot_is_reserved_unless_there_is_only_one(tmp_path: Path) -> None:
    assert load_settings({"slots": 3}, environment={}, folder=tmp_path).reserved == 1
    assert load_settings({"slots": 1}, environment={}, folder=tmp_path).reserved == 0


@pytest.mark.parametrize(
    "given, message",
    [
        ({"slots": 0}, "slots must be between 1 and 10000"),
        ({"slots": True}, "slots: expected a whole number"),
        ({"slots": 2.0}, "slots: expected a whole number"),
        ({"heartbeat": 0}, "heartbeat must be above 0"),
        ({"heartbeat": float("nan")}, "heartbeat"),
        ({"grace": -1}, "grace must be at least 0"),
        ({"heartbeat": 50}, "dead_after .* must be at least twice heartbeat"),
        ({"payload_max": 0}, "payload_max must be above 0"),
        ({"http_payload_max": 0}, "http_payload_max must be above 0"),
        ({"namespace": "a b"}, "namespace must be a name"),
        ({"namespace": "x" * 65}, "namespace must be a name"),
        ({"log": "xml"}, "log must be console or json"),
        ({"store": 5}, "store: expected text"),
        ({"capabilities": 5}, "capabilities: expected names"),
    ],
    ids=lambda value: repr(value) if isinstance(value, dict) else "",
)
def test_a_value_that_cannot_be_used_is_refused_by_name(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_settings(given, environment={}, folder=tmp_path)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "soon"])
def test_a_length_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="HEADWAY_GRACE: expected a number of seconds"):
        load_settings(environment={"HEADWAY_GRACE": text}, folder=tmp_path)


def test_lengths_and_names_are_read_in_their_usual_forms(tmp_path: Path) -> None:
    settings = load_settings(
        {"grace": timedelta(minutes=1)},
        environment={"HEADWAY_CAPABILITIES": "gpu, ssd,,gpu", "HEADWAY_HARD_GRACE": "2.5"},
        folder=tmp_path,
    )
    assert (settings.grace, settings.hard_grace, settings.capabilities) == (60, 2.5, ("gpu", "ssd"))


def test_an_unknown_setting_suggests_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UnknownOption, match="unknown setting 'slot'; did you mean 'slots'"):
        Headway("memory://", slot=5)
    (tmp_path / "headway.toml").write_text("stroe = 'memory://'")
    with pytest.raises(UnknownOption, match=r"headway.toml: unknown setting 'stroe'; did you mean 'store'"):
        load_settings(environment={}, folder=tmp_path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "headway.toml").write_text("slots = ")
    with pytest.raises(ConfigError, match=r"headway.toml cannot be read"):
        load_settings(environment={}, folder=tmp_path)


def test_an_unknown_variable_only_warns(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="HEADWAY_SLOT is not a setting of Headway; did you mean 'HEADWAY_SLOTS'"):
        settings = load_settings(environment={"HEADWAY_SLOT": "9"}, folder=tmp_path)
    assert settings.slots == 5


def test_a_variable_that_is_empty_is_not_set(tmp_path: Path) -> None:
    environment = {f"HEADWAY_{field.name.upper()}": "" for field in fields(Settings)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_settings(environment=environment | {"HEADWAY_ODD": ""}, folder=tmp_path) == Settings()
    assert load_settings(environment=environment | {"MAX_CONCURRENT_TASKS": "7"}, folder=tmp_path).slots == 7
    (tmp_path / "headway.toml").write_text("slots = 6")
    assert load_settings(environment={"HEADWAY_SLOTS": " "}, folder=tmp_path).slots == 6


def test_what_kubernetes_sets_for_a_service_called_headway_is_not_ours(tmp_path: Path) -> None:
    environment = {
        "HEADWAY_PORT": "tcp://10.0.0.1:80",
        "HEADWAY_SERVICE_HOST": "10.0.0.1",
        "HEADWAY_PORT_80_TCP_ADDR": "10.0.0.1",
        "HEADWAY_APP": "web:app",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_settings(environment=environment, folder=tmp_path).port == 8000
    assert load_settings(environment={"HEADWAY_PORT": "9000"}, folder=tmp_path).port == 9000


@pytest.mark.parametrize(
    "url, message",
    [
        ("headway.db", "has no scheme"),
        ("mysql://x", "unknown store 'mysql'"),
        ("sqlite://", "names no file"),
        ("sqlite:///x.db?mode=ro", "unknown option 'mode'"),
        ("sqlite:///x.db?synchronous=off", "synchronous is full, normal or extra"),
    ],
)
def test_an_address_that_leads_nowhere_is_refused_when_it_is_used(url: str, message: str) -> None:
    app = Headway(url)

    @app.task
    def ping() -> None: ...

    with pytest.raises(ConfigError, match=message):
        ping.enqueue()
    app.portal.close()


def test_an_address_is_never_shown_with_its_password() -> None:
    app = Headway("nosql://user:hunter2@host/0")

    @app.task
    def ping() -> None: ...

    with pytest.raises(ConfigError) as caught:
        ping.enqueue()
    assert "hunter2" not in str(caught.value) + repr(caught.value.facts)
    app.portal.close()


def test_a_current_directory_that_was_deleted_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(ConfigError, match="the current directory no longer exists; change to one that does"):
        load_settings()
