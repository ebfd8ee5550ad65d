"""The options, calls and settings of Celery, and what each of them does for an adopted task.

``adopt`` refuses what this table refuses, ``headway celery check`` reports from it, and the guide prints it.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple


class FeatureStatus(StrEnum):
    """The treatment of a feature when its task is adopted."""

    AS_IS = "as is"
    DIFFERS = "differs"
    REFUSED = "refused"


class FeatureKind(StrEnum):
    """The place of a feature in a Celery project."""

    TASK_OPTION = "task option"  # @app.task(NAME=…), or an attribute of a task class.
    TASK_METHOD = "task method"  # Called on a task, or overridden in a base class.
    CALL_OPTION = "call option"  # apply_async(NAME=…) and send_task(NAME=…).
    RETRY_OPTION = "retry option"  # self.retry(NAME=…).
    REQUEST = "request"  # self.request.NAME
    RESULT = "result"  # AsyncResult(id).NAME and GroupResult.NAME
    EXCEPTION = "exception"  # Raised by a task.
    CANVAS = "canvas"
    SCHEDULE = "schedule"
    SIGNAL = "signal"
    CONTROL = "control"  # app.control.NAME, app.control.inspect().NAME
    SETTING = "setting"  # app.conf.NAME
    APP = "app"  # Calls and decorators of the app.


class Feature(NamedTuple):
    """One name of Celery. ``note`` says how it differs, or why it is refused and what to do."""

    kind: FeatureKind
    name: str
    status: FeatureStatus
    note: str = ""


def _as_is(kind: FeatureKind, names: str, note: str = "") -> Iterator[Feature]:
    return (Feature(kind, name, FeatureStatus.AS_IS, note) for name in names.split())


def _differs(kind: FeatureKind, note: str, names: str) -> Iterator[Feature]:
    return (Feature(kind, name, FeatureStatus.DIFFERS, note) for name in names.split())


def _refused(kind: FeatureKind, note: str, names: str) -> Iterator[Feature]:
    return (Feature(kind, name, FeatureStatus.REFUSED, note) for name in names.split())


_NO_ACK = "has no effect: a job is never lost with its worker, it always runs again"
_NO_BROKER = "has no effect: an adopted task is not sent to the broker"
_JSON = "has no effect: arguments and results are JSON; a value that JSON cannot hold is refused by its name"
_OWN_LOGS = "has no effect: Headway's workers log as --log and --log-level say, and print() goes to standard output"
_NO_ERRBACK = (
    "is not called for a task that time_limit killed or whose process died, except as the callback of a chord's body"
)
_CRASH = "a job whose process dies runs again until the policy's crash_limit"

TASK_OPTIONS = [
    *_as_is(
        FeatureKind.TASK_OPTION,
        "name bind base typing autoretry_for dont_autoretry_for retry_backoff retry_backoff_max retry_jitter "
        "retry_kwargs max_retries default_retry_delay soft_time_limit track_started throws expires pydantic "
        "pydantic_strict pydantic_context pydantic_dump_kwargs shadow_name trail abstract __header__ request_stack "
        "resultrepr_maxsize store_eager_result",
    ),
    *_differs(FeatureKind.TASK_OPTION, "has no effect on Headway's workers", "Request Strategy"),
    *_differs(
        FeatureKind.TASK_OPTION, "kills the job in the process executor; with threads it kills the runner", "time_limit"
    ),
    *_differs(FeatureKind.TASK_OPTION, "holds over all workers together, not for each worker", "rate_limit"),
    *_differs(
        FeatureKind.TASK_OPTION, "the queue is a need that `headway worker -Q` offers; see the printed map", "queue"
    ),
    *_differs(FeatureKind.TASK_OPTION, "chooses the lane: high, the policy's default, or low", "priority"),
    *_differs(FeatureKind.TASK_OPTION, "the store keeps the result as long as the policy keeps jobs", "ignore_result"),
    *_differs(FeatureKind.TASK_OPTION, "is always on: the store keeps errors", "store_errors_even_if_ignored"),
    *_differs(
        FeatureKind.TASK_OPTION,
        _NO_ACK,
        "acks_late acks_on_failure_or_timeout acks_on_failure acks_on_timeout retry_on_worker_lost",
    ),
    *_differs(FeatureKind.TASK_OPTION, _CRASH, "reject_on_worker_lost"),
    *_differs(
        FeatureKind.TASK_OPTION, _NO_BROKER, "exchange exchange_type routing_key delivery_mode compression send_events"
    ),
    *_differs(FeatureKind.TASK_OPTION, _JSON, "serializer"),
    *_differs(
        FeatureKind.TASK_OPTION, "has no effect: Headway keeps the results of adopted tasks", "backend result_backend"
    ),
]

TASK_METHODS = [
    *_as_is(
        FeatureKind.TASK_METHOD,
        "delay apply_async apply send_event __call__ run before_start on_success on_failure on_retry after_return "
        "on_bound s si signature subtask chunks map starmap retry AsyncResult "
        "delay_on_commit apply_async_on_commit request shadow_name start_strategy add_around annotate bind",
    ),
    *_differs(FeatureKind.TASK_METHOD, "keeps at most 3,000 characters of JSON until the job ends", "update_state"),
    *_differs(
        FeatureKind.TASK_METHOD,
        "the task or the last task of a chain or chord runs in the same job, with its queue, lane and time limit",
        "replace",
    ),
    *_refused(
        FeatureKind.TASK_METHOD,
        "the header of a chord cannot grow after it was sent; use self.replace with a group",
        "add_to_chord",
    ),
]

CALL_OPTIONS = [
    *_differs(FeatureKind.CALL_OPTION, _NO_ERRBACK, "link_error"),
    *_differs(
        FeatureKind.CALL_OPTION,
        "an id stands for one job: while that job waits or runs, a second call with the id does not add another",
        "task_id",
    ),
    *_as_is(
        FeatureKind.CALL_OPTION,
        "args kwargs countdown eta expires headers link retries root_id parent_id group_id "
        "group_index chord chain shadow soft_time_limit add_to_parent ignore_result route_name router result_cls "
        "task_type argsrepr kwargsrepr origin stamped_headers replaced_task_nesting",
    ),
    *_differs(
        FeatureKind.CALL_OPTION, "kills the job in the process executor; with threads it kills the runner", "time_limit"
    ),
    *_differs(
        FeatureKind.CALL_OPTION, "the queue is a need that `headway worker -Q` offers; see the printed map", "queue"
    ),
    *_differs(FeatureKind.CALL_OPTION, "chooses the lane: high, the policy's default, or low", "priority"),
    *_differs(
        FeatureKind.CALL_OPTION,
        _NO_BROKER,
        "producer publisher connection exchange exchange_type routing_key delivery_mode mandatory immediate declare "
        "compression timeout confirm_timeout event_dispatcher reply_to expiration",
    ),
    *_differs(FeatureKind.CALL_OPTION, "has no effect: the store's own retries apply", "retry retry_policy"),
    *_differs(FeatureKind.CALL_OPTION, _JSON, "serializer"),
]

RETRY_OPTIONS = [
    *_as_is(FeatureKind.RETRY_OPTION, "exc countdown eta max_retries throw args kwargs"),
    *_differs(
        FeatureKind.RETRY_OPTION,
        "has no effect on a retry: the job keeps the options of its first call",
        "queue priority expires time_limit soft_time_limit headers link link_error serializer routing_key exchange",
    ),
]

REQUEST = [
    *_as_is(
        FeatureKind.REQUEST,
        "id retries args kwargs headers called_directly is_eager root_id parent_id group group_index chord chain "
        "callbacks errbacks eta expires timelimit origin shadow correlation_id reply_to utc properties stamps "
        "stamped_headers ignore_result children argsrepr kwargsrepr task taskset loglevel logfile "
        "replaced_task_nesting",
    ),
    *_differs(FeatureKind.REQUEST, "is headway@ and the name of the machine", "hostname"),
    *_differs(FeatureKind.REQUEST, "has the queue and the priority, and no exchange", "delivery_info"),
]

RESULT = [
    *_as_is(
        FeatureKind.RESULT,
        "id task_id state status get wait ready successful failed result info traceback revoke forget children "
        "parent graph collect iterdeps maybe_throw maybe_reraise as_tuple as_list build_graph get_leaf then "
        "date_done name args kwargs worker retries queue ignored "
        "join completed_count waiting results iter_native join_native save restore delete add "
        "remove discard update clear",
    ),
    *_differs(
        FeatureKind.RESULT,
        "cancels the jobs of these ids; stamps of adopted tasks are not searched",
        "revoke_by_stamped_headers",
    ),
]

EXCEPTIONS = [
    *_as_is(
        FeatureKind.EXCEPTION,
        "Retry MaxRetriesExceededError SoftTimeLimitExceeded TimeLimitExceeded TaskRevokedError ChordError "
        "TimeoutError Ignore",
    ),
    *_differs(
        FeatureKind.EXCEPTION, "requeue=True puts the job back into its queue; without it the job fails", "Reject"
    ),
    *_differs(FeatureKind.EXCEPTION, _CRASH, "WorkerLostError"),
]

CANVAS = [
    *_as_is(
        FeatureKind.CANVAS,
        "signature chain group chunks map starmap xmap xstarmap link immutable si partial maybe_signature set clone",
    ),
    *_differs(FeatureKind.CANVAS, _NO_ERRBACK, "link_error on_error"),
    *_differs(
        FeatureKind.CANVAS,
        "the store starts the body when the header has ended; all tasks of a chord must be adopted, or none",
        "chord",
    ),
    *_differs(
        FeatureKind.CANVAS, "stamps are kept with the job; revoking by stamps does not find adopted tasks", "stamp"
    ),
]

SCHEDULE = [
    *_as_is(
        FeatureKind.SCHEDULE,
        "beat_schedule crontab schedule timedelta add_periodic_task on_after_configure on_after_finalize",
    ),
    *_differs(
        FeatureKind.SCHEDULE,
        "workers read its tables every 30 s and send the rows of adopted tasks; celery beat sends those that run once",
        "django_celery_beat PeriodicTask",
    ),
    *_differs(FeatureKind.SCHEDULE, "intervals of less than a second become one second", "relative"),
    *_refused(
        FeatureKind.SCHEDULE, "Headway has no solar events; use crontab, or keep this entry on celery beat", "solar"
    ),
]

SIGNALS = [
    *_as_is(
        FeatureKind.SIGNAL,
        "before_task_publish after_task_publish task_prerun task_postrun task_success task_failure task_retry "
        "task_internal_error task_rejected setup_logging after_setup_logger after_setup_task_logger "
        "worker_process_init worker_ready worker_shutting_down worker_shutdown import_modules",
    ),
    *_differs(
        FeatureKind.SIGNAL, "is sent in each process that runs tasks", "celeryd_init celeryd_after_setup worker_init"
    ),
    *_differs(FeatureKind.SIGNAL, "is sent by the process that revokes the task", "task_revoked"),
    *_differs(FeatureKind.SIGNAL, "is sent when the job starts", "task_received"),
    *_differs(
        FeatureKind.SIGNAL,
        "is sent by celery beat only; Headway needs no beat process",
        "beat_init beat_embedded_init",
    ),
    *_differs(
        FeatureKind.SIGNAL,
        "is not sent: Headway has no such moment",
        "worker_process_shutdown worker_before_create_process task_sent task_unknown heartbeat_sent "
        "eventlet_pool_started eventlet_pool_preshutdown eventlet_pool_postshutdown eventlet_pool_apply "
        "user_preload_options",
    ),
]

CONTROL = [
    *_as_is(
        FeatureKind.CONTROL,
        "inspect active reserved scheduled stats ping registered registered_tasks active_queues query_task",
    ),
    *_differs(
        FeatureKind.CONTROL,
        "cancels the job; a running one is stopped whether or not terminate is set",
        "revoke terminate",
    ),
    *_differs(
        FeatureKind.CONTROL,
        "reaches only Celery's own workers",
        "broadcast purge discard_all shutdown pool_grow pool_shrink pool_restart autoscale add_consumer "
        "cancel_consumer enable_events disable_events rate_limit time_limit heartbeat election clock memdump "
        "memsample objgraph hello revoke_by_stamped_headers revoked conf report",
    ),
]

SETTINGS = [
    *_as_is(
        FeatureKind.SETTING,
        "accept_content imports include namespace timezone enable_utc task_always_eager task_eager_propagates "
        "task_store_eager_result task_annotations task_soft_time_limit task_default_queue task_routes task_queues "
        "task_create_missing_queues task_track_started beat_schedule result_extended task_remote_tracebacks "
        "task_protocol task_inherit_parent_priority task_repr_maxlevels task_allow_error_cb_on_chord_header",
    ),
    *_differs(
        FeatureKind.SETTING,
        _OWN_LOGS,
        "worker_hijack_root_logger worker_log_format worker_task_log_format worker_log_color worker_log_datefmt "
        "worker_task_log_datefmt worker_redirect_stdouts worker_redirect_stdouts_level",
    ),
    *_differs(FeatureKind.SETTING, "holds over all workers together, not for each worker", "task_default_rate_limit"),
    *_differs(
        FeatureKind.SETTING,
        "kills the job in the process executor; with threads it kills the runner",
        "task_time_limit",
    ),
    *_differs(FeatureKind.SETTING, "chooses the lane of tasks without a priority", "task_default_priority"),
    *_differs(FeatureKind.SETTING, "the store keeps the result as long as the policy keeps jobs", "task_ignore_result"),
    *_differs(FeatureKind.SETTING, "is always on: the store keeps errors", "task_store_errors_even_if_ignored"),
    *_differs(FeatureKind.SETTING, "use [keep] in the policy", "result_expires"),
    *_differs(
        FeatureKind.SETTING,
        _NO_ACK,
        "task_acks_late task_acks_on_failure_or_timeout task_acks_on_failure task_acks_on_timeout "
        "task_retry_on_worker_lost worker_cancel_long_running_tasks_on_connection_loss "
        "worker_deduplicate_successful_tasks",
    ),
    *_differs(FeatureKind.SETTING, _CRASH, "task_reject_on_worker_lost"),
    *_differs(
        FeatureKind.SETTING,
        _NO_BROKER,
        "broker_host broker_port broker_user broker_password broker_vhost broker_pool_acquire_timeout "
        "task_create_missing_queue_type task_create_missing_queue_exchange_type worker_disable_prefetch "
        "broker_url broker_read_url broker_write_url broker_transport broker_transport_options broker_pool_limit "
        "broker_heartbeat broker_heartbeat_checkrate broker_connection_timeout broker_connection_retry "
        "broker_connection_retry_on_startup broker_connection_max_retries broker_channel_error_retry "
        "broker_failover_strategy broker_login_method broker_use_ssl broker_native_delayed_delivery_queue_type "
        "task_default_exchange task_default_exchange_type task_default_routing_key task_default_delivery_mode "
        "task_default_queue_type task_queue_max_priority task_queue_ha_policy task_compression "
        "task_publish_retry task_publish_retry_policy task_send_sent_event worker_send_task_events "
        "worker_prefetch_multiplier worker_disable_rate_limits worker_enable_remote_control "
        "worker_eta_task_limit control_queue_ttl control_queue_expires control_exchange event_queue_ttl "
        "event_queue_expires event_queue_prefix event_exchange event_serializer",
    ),
    *_differs(FeatureKind.SETTING, _JSON, "task_serializer result_serializer result_compression result_accept_content"),
    *_differs(
        FeatureKind.SETTING,
        "has no effect: Headway keeps the results of adopted tasks",
        "result_backend result_backend_transport_options result_backend_always_retry result_backend_max_retries "
        "result_persistent result_cache_max result_chord_join_timeout result_chord_retry_interval "
        "override_backends redis_max_connections redis_socket_timeout redis_backend_use_ssl "
        "redis_backend_health_check_interval redis_socket_keepalive",
    ),
    *_differs(FeatureKind.SETTING, "use headway worker --slots", "worker_concurrency"),
    *_differs(
        FeatureKind.SETTING,
        "threads, gevent, eventlet and solo run adopted tasks in threads, others in processes",
        "worker_pool",
    ),
    *_differs(FeatureKind.SETTING, "use headway worker --max-jobs-per-child", "worker_max_tasks_per_child"),
    *_differs(
        FeatureKind.SETTING,
        "use headway worker --max-memory-per-child, which counts MiB instead of KiB",
        "worker_max_memory_per_child",
    ),
    *_differs(
        FeatureKind.SETTING,
        "has no effect: Headway needs no beat process",
        "beat_scheduler beat_schedule_filename beat_sync_every beat_max_loop_interval beat_cron_starting_deadline "
        "beat_logfile beat_pidfile beat_enable_remote_control beat_remote_control_max_tick_age",
    ),
    *_differs(
        FeatureKind.SETTING,
        "has no effect on Headway's workers",
        "worker_lost_wait worker_timer worker_timer_precision worker_consumer worker_autoscaler worker_pool_restarts "
        "worker_pool_putlocks worker_proc_alive_timeout worker_state_db worker_direct worker_agent worker_logfile "
        "worker_pidfile worker_soft_shutdown_timeout worker_enable_soft_shutdown_on_idle worker_detect_quorum_queues "
        "worker_enable_prefetch_count_reduction worker_pool_start_method",
    ),
]

APP = [
    *_as_is(
        FeatureKind.APP,
        "Celery task shared_task register_task send_task autodiscover_tasks config_from_object config_from_envvar "
        "config_from_cmdline finalize set_default AsyncResult GroupResult ResultSet current_task current_app "
        "get_task_logger task_cls Task signature tasks conf add_periodic_task loader gen_task_name "
        "on_after_configure on_after_finalize allow_join_result DjangoTask",
    ),
    *_differs(
        FeatureKind.APP,
        "celery -A proj worker runs what is not adopted; headway worker --celery proj the rest",
        "worker_main start Worker",
    ),
    *_differs(
        FeatureKind.APP, "has no effect on adopted tasks: they are not in the broker", "connection producer_pool amqp"
    ),
    *_differs(FeatureKind.APP, "sees only Celery's own tasks; use the dashboard", "events flower"),
]

FEATURES: tuple[Feature, ...] = (
    *TASK_OPTIONS, *TASK_METHODS, *CALL_OPTIONS, *RETRY_OPTIONS, *REQUEST, *RESULT, *EXCEPTIONS, *CANVAS, *SCHEDULE,
    *SIGNALS, *CONTROL, *SETTINGS, *APP,
)  # fmt: skip

_BY_NAME = MappingProxyType({(feature.kind, feature.name): feature for feature in FEATURES})


def find_feature(kind: FeatureKind, name: str) -> Feature | None:
    """Return what the table says of a name, or None if it does not have the name."""
    return _BY_NAME.get((kind, name))
