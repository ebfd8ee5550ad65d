"""The table of Celery's features covers what real applications use."""

from __future__ import annotations

from pathlib import Path

import pytest
from celery import signals  # type: ignore[import-untyped]
from celery.app.defaults import NAMESPACES, flatten  # type: ignore[import-untyped]
from celery.app.task import Context, Task  # type: ignore[import-untyped]
from celery.utils.dispatch import Signal  # type: ignore[import-untyped]

from headway.integrations.celery.adoption.features import (
    FEATURES,
    FeatureKind,
    FeatureStatus,
    find_feature,
)


def markdown_table() -> str:
    """Return the table for the guide. Names with the same kind, status and note share a row."""
    rows: dict[tuple[FeatureKind, FeatureStatus, str], list[str]] = {}
    for feature in FEATURES:
        rows.setdefault((feature.kind, feature.status, feature.note), []).append(f"`{feature.name}`")
    lines = ["| where | names | status | how, or why |", "|---|---|---|---|"]
    lines += [f"| {kind} | {', '.join(names)} | {status} | {note} |" for (kind, status, note), names in rows.items()]
    return "\n".join(lines)


# What 21 public applications with 1,150 tasks use: names of options and calls, counted from their source.
CORPUS = {
    FeatureKind.TASK_OPTION: (
        "bind name base queue max_retries soft_time_limit time_limit acks_late autoretry_for "
        "retry_backoff retry_backoff_max retry_jitter retry_kwargs default_retry_delay ignore_result "
        "throws rate_limit track_started serializer priority expires reject_on_worker_lost"
    ),
    FeatureKind.TASK_METHOD: (
        "delay apply_async apply s si signature retry update_state chunks on_failure on_success on_retry "
        "after_return before_start __call__ run"
    ),
    FeatureKind.CALL_OPTION: (
        "args kwargs countdown queue task_id priority headers expires eta link link_error serializer "
        "retry soft_time_limit time_limit ignore_result"
    ),
    FeatureKind.RETRY_OPTION: ("exc countdown max_retries args kwargs throw eta"),
    FeatureKind.REQUEST: (
        "id retries args kwargs delivery_info headers called_directly is_eager hostname root_id parent_id"
    ),
    FeatureKind.RESULT: (
        "state status get ready successful failed result traceback info revoke forget children parent save restore id"
    ),
    FeatureKind.EXCEPTION: ("SoftTimeLimitExceeded Ignore Reject Retry MaxRetriesExceededError"),
    FeatureKind.CANVAS: ("chain group chord chunks signature on_error link link_error immutable"),
    FeatureKind.SCHEDULE: ("crontab beat_schedule schedule add_periodic_task PeriodicTask solar"),
    FeatureKind.SIGNAL: (
        "setup_logging task_postrun task_failure worker_process_init task_prerun task_retry task_success "
        "task_revoked before_task_publish after_task_publish worker_init worker_ready "
        "worker_shutting_down worker_shutdown worker_process_shutdown celeryd_init beat_init"
    ),
    FeatureKind.CONTROL: ("inspect active reserved scheduled stats ping registered revoke broadcast purge"),
    FeatureKind.SETTING: (
        "task_always_eager task_eager_propagates task_routes task_queues task_default_queue "
        "beat_schedule worker_max_tasks_per_child worker_max_memory_per_child task_acks_late "
        "worker_prefetch_multiplier timezone task_serializer result_backend broker_url accept_content "
        "result_expires task_track_started beat_scheduler"
    ),
    FeatureKind.APP: (
        "Celery config_from_object autodiscover_tasks task shared_task send_task AsyncResult "
        "current_task get_task_logger"
    ),
}


@pytest.mark.parametrize("kind, name", [(kind, name) for kind, names in CORPUS.items() for name in names.split()])
def test_each_name_that_real_applications_use_has_a_status(kind: FeatureKind, name: str) -> None:
    assert find_feature(kind, name) is not None


def test_each_name_is_in_the_table_once() -> None:
    names = [(feature.kind, feature.name) for feature in FEATURES]
    assert len(names) == len(set(names))


def test_each_feature_that_is_not_as_it_was_says_how_or_why() -> None:
    assert [feature for feature in FEATURES if feature.status is not FeatureStatus.AS_IS and not feature.note] == []


def test_the_table_has_every_attribute_of_a_request() -> None:
    names = {name for name in vars(Context) if not name.startswith("_")} - {
        "update", "clear", "get", "as_execution_options", "time_limit", "soft_time_limit",
    }  # fmt: skip
    assert [name for name in sorted(names) if find_feature(FeatureKind.REQUEST, name) is None] == []


def test_the_table_has_every_signal() -> None:
    names = [name for name, value in vars(signals).items() if isinstance(value, Signal)]
    assert [name for name in names if find_feature(FeatureKind.SIGNAL, name) is None] == []


def test_the_table_has_every_setting_of_tasks_workers_and_beat() -> None:
    prefixes = ("task_", "worker_", "beat_", "broker_")
    names = [name for name, _ in flatten(NAMESPACES) if name.startswith(prefixes)]
    assert [name for name in names if find_feature(FeatureKind.SETTING, name) is None] == []


def test_the_table_has_every_option_that_a_task_reads_from_settings() -> None:
    names = [name for name, _ in Task.from_config]
    assert [name for name in names if find_feature(FeatureKind.TASK_OPTION, name) is None] == []


def test_what_is_refused_is_little_and_known() -> None:
    assert {feature.name for feature in FEATURES if feature.status is FeatureStatus.REFUSED} == {
        "add_to_chord",
        "solar",
    }


def test_the_guide_has_the_table() -> None:
    guide = (Path(__file__).parents[4] / "docs" / "how-to" / "coming-from-celery.md").read_text()
    assert markdown_table() in guide
