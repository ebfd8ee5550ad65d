"""The result backend of an adopted app: asks Headway about jobs that Headway has, and Celery's backend about others."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from celery import states  # type: ignore[import-untyped]
from celery.backends.base import BaseBackend, DisabledBackend  # type: ignore[import-untyped]
from celery.exceptions import TimeoutError as CeleryTimeout  # type: ignore[import-untyped]
from celery.result import result_from_tuple  # type: ignore[import-untyped]
from kombu.exceptions import EncodeError

from headway.client.codec import decode_result
from headway.core.errors import ConfigError, JobNotFound, ResultTimeout
from headway.core.job import ENDED_STATES, JobId, JobRecord, State
from headway.integrations.celery.adoption.attempt import RunningAttempt, running
from headway.integrations.celery.adoption.canvas import begin_chord
from headway.integrations.celery.adoption.features import FeatureKind, find_feature
from headway.integrations.celery.adoption.message import plain_result
from headway.integrations.celery.adoption.meta import UPSTREAM, job_meta, write_note

if TYPE_CHECKING:
    from headway.integrations.celery.adoption.adoption import Adoption

CHILDREN = "celery.children:"  # Before the number of an attempt: the step that keeps the tasks that it sent.
GROUPS = "celery_group"  # The kind of the documents of saved groups, for apps without another backend.
LOOK_EVERY = 1.0  # Seconds between looks at a job while it changes nothing.


class JobBackend(BaseBackend):  # type: ignore[misc]
    """Keeps nothing itself. A task that a Celery worker runs writes to the original backend, as before."""

    def __init__(self, adoption: Adoption, make_original: Callable[[], Any]) -> None:
        super().__init__(adoption.app, serializer="json")
        self.adoption = adoption
        self.thread_safe = True
        self._make_original = make_original
        self._called = threading.local()  # The call that this thread is sending.

    @cached_property
    def original(self) -> Any:
        return self._make_original()

    @property
    def _has_original(self) -> bool:
        return not isinstance(self.original, DisabledBackend)

    def _attempt(self, task_id: str) -> RunningAttempt | None:
        """Return the attempt of this thread if it runs the task."""
        attempt = running.get()
        return attempt if attempt is not None and attempt.job_id == task_id else None

    # ------------------------------------------------------------------ written by a running task

    def store_result(
        self, task_id: str, result: Any, state: str, traceback: Any = None, request: Any = None, **kwargs: Any
    ) -> Any:
        attempt = self._attempt(task_id)
        if attempt is None:
            return self.original.store_result(task_id, result, state, traceback, request=request, **kwargs)
        if state in (states.SUCCESS, states.RETRY) or isinstance(result, BaseException):
            return result  # The worker reports how the attempt ended.
        meta = plain_result(result)
        note = write_note(state, meta)
        attempt.state = (state, meta)
        if state != states.STARTED:
            attempt.context.keep_note(_fraction(meta), note)
        return result

    def mark_as_done(
        self, task_id: str, result: Any, request: Any = None, store_result: bool = True, state: str = states.SUCCESS
    ) -> None:
        attempt = self._attempt(task_id)
        if attempt is None:
            self.original.mark_as_done(task_id, result, request, store_result, state)
            return
        attempt.children = self.current_task_children(request)
        try:
            attempt.result = plain_result(self.prepare_value(result))
        except (TypeError, ValueError) as problem:
            if store_result:
                raise EncodeError(f"the result cannot be stored as JSON: {problem}") from problem

    def mark_as_failure(self, task_id: str, exc: Any, *args: Any, **kwargs: Any) -> Any:
        attempt = self._attempt(task_id)
        if attempt is None:
            return self.original.mark_as_failure(task_id, exc, *args, **kwargs)
        super().mark_as_failure(task_id, exc, *args, **kwargs)
        attempt.children = self.current_task_children(kwargs.get("request"))
        return None

    def _call_task_errbacks(self, request: Any, exc: Any, traceback: Any) -> None:
        """Call error callbacks. Those that are tasks start once the failed job has ended, so that they can read it."""
        attempt = self._attempt(request.id)
        if attempt is None:
            super()._call_task_errbacks(request, exc, traceback)
            return
        with self.adoption.sender.after_job(attempt.job_id):
            super()._call_task_errbacks(request, exc, traceback)

    def on_chord_part_return(self, request: Any, state: str, result: Any, **kwargs: Any) -> None:
        if self._attempt(request.id) is None:
            self.original.on_chord_part_return(request, state, result, **kwargs)

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        if self.adoption.sender.opened is None and self._has_original:
            self.original.set_chord_size(group_id, chord_size)

    def add_to_chord(self, chord_id: str, result: Any) -> None:
        if running.get() is not None:
            feature = find_feature(FeatureKind.TASK_METHOD, "add_to_chord")
            raise ConfigError(f"self.add_to_chord is refused: {'' if feature is None else feature.note}")
        self.original.add_to_chord(chord_id, result)

    def ensure_chords_allowed(self) -> None:
        """Allow chords. Those of adopted tasks need no backend."""

    def apply_chord(self, header_result_args: Any, body: Any, **kwargs: Any) -> None:
        if not begin_chord(self.adoption, header_result_args, body):
            self.original.apply_chord(header_result_args, body, **kwargs)

    def on_task_call(self, producer: Any, task_id: str) -> dict[str, Any]:
        """Note the call. Only one that goes to the broker may need the original backend."""
        self._called.arguments = (producer, task_id)
        return {}

    def call_sent(self, *, adopted: bool) -> None:
        """Prepare the original backend for the result of a call, if the call goes to the broker."""
        arguments = vars(self._called).pop("arguments", None)
        if arguments is not None and not adopted and self._has_original:
            self.original.on_task_call(*arguments)

    def process_cleanup(self) -> None:
        if "original" in vars(self):
            self.original.process_cleanup()

    # ------------------------------------------------------------------ read by results

    def find_jobs(self, task_ids: list[str]) -> list[JobRecord | None]:
        """Read jobs by their ids."""
        headway = self.adoption.headway
        return headway.portal.run(headway.client.read_jobs([JobId(task_id) for task_id in task_ids]))

    def _get_task_meta_for(self, task_id: str) -> dict[str, Any]:
        (job,) = self.find_jobs([task_id])
        if job is None:
            unknown = {"status": states.PENDING, "result": None, "task_id": task_id}
            return self.original.get_task_meta(task_id) if self._has_original else unknown
        job = self.failed_source(job)
        meta: dict[str, Any] = self.meta_from_decoded(job_meta(job, tracked=self._is_tracked(job.task)))
        meta["task_id"] = task_id
        meta["children"] = self._children(task_id) if job.state.ended else []
        return meta

    def _is_tracked(self, name: str) -> bool:
        """Return whether a running task is in state STARTED: the option or the setting ``track_started``."""
        task = self.app.tasks.get(name)
        return bool(self.app.conf.task_track_started if task is None else task.track_started)

    def failed_source(self, job: JobRecord) -> JobRecord:
        """Return the job with which a step of a chain failed: one of the steps before it, or itself."""
        while job.state is State.CANCELLED and (upstream := UPSTREAM.match(job.reason or "")):
            (source,) = self.find_jobs([upstream[1]])
            if source is None:
                break
            job = source
        return job

    def read_steps(self, task_id: str) -> dict[str, bytes]:
        """Read what the attempts of a job have kept."""
        return self.adoption.on_store(lambda store: store.steps(JobId(task_id)))

    def _children(self, task_id: str) -> list[Any]:
        kept = [value for key, value in self.read_steps(task_id).items() if key.startswith(CHILDREN)]
        return [_tuples(child) for child in decode_result(kept[-1]) or []] if kept else []

    def wait_for_pending(
        self,
        result: Any,
        timeout: float | None = None,
        interval: float = 0.5,
        no_ack: bool = True,
        on_message: Any = None,
        on_interval: Any = None,
        callback: Any = None,
        propagate: bool = True,
    ) -> Any:
        """Wait in Headway if it has the job. Else let the original backend wait, and look again now and then."""

        def wait(backend: Any, seconds: float | None) -> Any:
            return backend.wait_for_pending(
                result,
                timeout=seconds,
                interval=interval,
                no_ack=no_ack,
                on_message=on_message,
                on_interval=on_interval,
                callback=callback,
                propagate=propagate,
            )

        if self.adoption.adopts_all or not self._has_original:
            return wait(super(), timeout)
        ends = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if ends is None else max(0.0, ends - time.monotonic())
            if self.find_jobs([result.id]) != [None]:
                return wait(super(), left)
            self.original.add_pending_result(result)
            try:
                return wait(self.original, LOOK_EVERY if left is None else min(left, LOOK_EVERY))
            except CeleryTimeout:
                if left is not None and left <= LOOK_EVERY:
                    raise

    def wait_for(
        self,
        task_id: str,
        timeout: float | None = None,
        interval: float = 0.5,
        no_ack: bool = True,
        on_interval: Any = None,
    ) -> dict[str, Any]:
        ends = None if timeout is None else time.monotonic() + timeout
        while True:
            meta: dict[str, Any] = self.get_task_meta(task_id)
            if on_interval and meta["status"] != states.SUCCESS:  # It raises the error of a task before this one.
                on_interval()
            if meta["status"] in states.READY_STATES:
                return meta
            left = None if ends is None else ends - time.monotonic()
            if left is not None and left <= 0:
                raise CeleryTimeout("The operation timed out.")
            self._wait_a_little(task_id, LOOK_EVERY if left is None else min(left, LOOK_EVERY), interval)

    def _wait_a_little(self, task_id: str, most: float, interval: float) -> None:
        """Wait until the job has ended, at most this long. Sleep if Headway does not have it or it has ended."""
        headway = self.adoption.headway
        began = time.monotonic()
        with suppress(ResultTimeout, JobNotFound):
            headway.portal.run(headway.client.ended(JobId(task_id), most))
        if time.monotonic() - began < interval:
            (job,) = self.find_jobs([task_id])
            if job is None or (job.state.ended and job_meta(job)["status"] not in states.READY_STATES):
                time.sleep(min(interval, most))

    def forget(self, task_id: str) -> None:
        if not self.remove(task_id) and self._has_original:
            self.original.forget(task_id)

    def remove(self, task_id: str) -> bool:
        """Remove a job that has ended. Return whether there was one."""
        return self.remove_all([task_id]) > 0

    def remove_all(self, task_ids: list[str]) -> int:
        """Remove the jobs that have ended. Return their number."""
        for task_id in task_ids:
            self._cache.pop(task_id, None)
        job_ids = [JobId(task_id) for task_id in task_ids]
        return self.adoption.on_store(lambda store: store.purge(ENDED_STATES, job_ids))

    # ------------------------------------------------------------------ saved groups

    def _save_group(self, group_id: str, result: Any) -> Any:
        if self._has_original:
            return self.original._save_group(group_id, result)
        self._write_group(group_id, json.dumps(result.as_tuple()).encode())
        return result

    def _delete_group(self, group_id: str) -> None:
        if self._has_original:
            self.original._delete_group(group_id)
        else:
            self._write_group(group_id, None)

    def _restore_group(self, group_id: str) -> dict[str, Any] | None:
        if self._has_original:
            found: dict[str, Any] | None = self.original._restore_group(group_id)
            return found
        documents = self.adoption.on_store(lambda store: store.read(GROUPS, group_id))
        if not documents:
            return None
        return {"result": result_from_tuple(_tuples(json.loads(documents[0].body)), self.app)}

    def _write_group(self, group_id: str, body: bytes | None) -> None:
        self.adoption.on_store(lambda store: store.write(GROUPS, group_id, body))


def _tuples(value: Any) -> Any:
    """Return a result that was stored as JSON in the form that Celery reads."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _fraction(meta: Any) -> float:
    """Return the progress that a meta such as ``{"current": 3, "total": 10}`` shows, else 0."""
    if isinstance(meta, dict):
        done, total = meta.get("current"), meta.get("total")
        if isinstance(done, (int, float)) and isinstance(total, (int, float)) and total:
            return min(1.0, max(0.0, done / total))
    return 0.0
