"""``app.control`` of an adopted app: Headway's workers and jobs beside Celery's own."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from celery import signals  # type: ignore[import-untyped]
from celery.app.task import Context as Request  # type: ignore[import-untyped]

from headway.core.job import JobRecord, State
from headway.core.worker import tasks_in
from headway.integrations.celery.adoption.message import read_message
from headway.integrations.celery.adoption.meta import iso_moment
from headway.integrations.celery.adoption.queues import NEED
from headway.stores.base import JobQuery

if TYPE_CHECKING:
    from headway.integrations.celery.adoption.adoption import Adoption

DOWN_SECONDS = 10.0  # How long a broker that did not answer is left alone.
LISTED = 1_000  # Jobs that one question of ``inspect`` reads at most.


class AdoptedControl:
    """Revokes adopted tasks and asks Headway's workers. Everything else goes to Celery's control."""

    def __init__(self, adoption: Adoption, original: Any) -> None:
        self._adoption = adoption
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def inspect(self, destination: Any = None, timeout: float = 1.0, **options: Any) -> AdoptedInspect:
        """Return questions to the workers of Headway and of Celery."""
        return AdoptedInspect(
            self._adoption, destination, lambda: self._original.inspect(destination, timeout=timeout, **options)
        )

    def ping(self, destination: Any = None, timeout: float = 1.0, **options: Any) -> list[dict[str, Any]]:
        """Return a reply of each worker."""
        replies = AdoptedInspect(self._adoption, destination).ping() or {}
        found = [{name: reply} for name, reply in replies.items()]
        if self._adoption.broker.answers():
            found += self._original.ping(destination, timeout=timeout, **options) or []
        return found

    def revoke(self, task_id: Any, *args: Any, **options: Any) -> Any:
        """Cancel the jobs of these ids. Ids that Headway does not have go to Celery's workers."""
        ids = [task_id] if isinstance(task_id, str) else list(task_id)
        backend, headway = self._adoption.app.backend, self._adoption.headway
        jobs = [job for job in backend.find_jobs(ids) if job is not None]
        if jobs:
            after = headway.portal.run(headway.client.cancel([job.job_id for job in jobs]))
            for job, state in zip(jobs, after, strict=True):
                if state is State.CANCELLED and job.state is not State.CANCELLED:
                    self._revoked(job)
        ours = {str(job.job_id) for job in jobs}
        others = [one for one in ids if one not in ours]
        return self._original.revoke(others, *args, **options) if others and not self._adoption.adopts_all else None

    def terminate(self, task_id: Any, *args: Any, **options: Any) -> Any:
        """Cancel the jobs of these ids and stop those that run."""
        options.pop("signal", None)
        return self.revoke(task_id, **options)

    def _revoked(self, job: JobRecord) -> None:
        message = read_message(job.payload)
        request = Request({**message.headers, "id": str(job.job_id), "task": job.task}, args=message.args)
        task = self._adoption.app.tasks.get(job.task)
        signals.task_revoked.send(sender=task, request=request, terminated=False, signum=None, expired=False)


class BrokerProbe:
    """Knows whether Celery's own workers can be asked, so that a health check does not wait for a broker that is down.

    An app whose tasks are all adopted may have no broker at all.
    """

    def __init__(self, adoption: Adoption) -> None:
        self._adoption = adoption
        self._down_until = 0.0

    def answers(self) -> bool:
        if self._adoption.adopts_all or time.monotonic() < self._down_until:
            return False
        try:
            with self._adoption.app.connection_for_write(connect_timeout=1) as connection:
                connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0, timeout=1)
        except Exception:  # Each transport has errors of its own.
            self._down_until = time.monotonic() + DOWN_SECONDS
            return False
        return True


class AdoptedInspect:
    """Answers the questions of ``inspect`` from the store, and adds the answers of Celery's workers."""

    def __init__(self, adoption: Adoption, destination: Any = None, make_original: Any = None) -> None:
        self._adoption = adoption
        self._destination = None if destination is None else set(_listed(destination))
        self._make_original = make_original

    def __getattr__(self, name: str) -> Any:
        if self._make_original is None or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._make_original(), name)

    def active(self, safe: Any = None) -> dict[str, Any] | None:
        """Return the jobs that run, by worker."""
        return self._answer("active", self._jobs_by_worker())

    def reserved(self, safe: Any = None) -> dict[str, Any] | None:
        """Return an empty list for each worker, because Headway's workers reserve nothing."""
        return self._answer("reserved", {name: [] for name in self._workers()})

    def scheduled(self, safe: Any = None) -> dict[str, Any] | None:
        """Return the jobs that wait for their moment. They belong to no worker, so the first one lists them."""
        waiting = [job for job in self._find(State.QUEUED) if job.due_at is not None]
        listed = [{"eta": iso_moment(job.due_at), "priority": None, "request": _shown(job)} for job in waiting]
        workers = list(self._workers())
        return self._answer("scheduled", {name: listed if name == workers[0] else [] for name in workers})

    def stats(self) -> dict[str, Any] | None:
        """Return the slots of each worker and the totals of the store."""
        totals = dict(self._stats().totals)
        answer = {
            name: {
                "pid": worker.pid,
                "pool": {"implementation": "headway", "max-concurrency": worker.slots},
                "prefetch_count": 0,
                "total": totals,
            }
            for name, worker in self._workers().items()
        }
        return self._answer("stats", answer)

    def ping(self, destination: Any = None) -> dict[str, Any] | None:
        """Return ``{"ok": "pong"}`` for each live worker."""
        return self._answer("ping", {name: {"ok": "pong"} for name in self._workers()})

    def registered(self, *taskinfoitems: Any) -> dict[str, Any] | None:
        """Return the tasks that each worker runs."""
        answer = {name: sorted(tasks_in(worker.offers)) for name, worker in self._workers().items()}
        return self._answer("registered", answer, *taskinfoitems)

    registered_tasks = registered

    def active_queues(self) -> dict[str, Any] | None:
        """Return the queues that each worker reads."""
        answer = {
            name: [{"name": offer.removeprefix(NEED)} for offer in worker.offers if offer.startswith(NEED)]
            for name, worker in self._workers().items()
        }
        return self._answer("active_queues", answer)

    def query_task(self, *ids: Any) -> dict[str, Any] | None:
        """Return the state of jobs by their ids."""
        wanted = [one for group in ids for one in _listed(group)]
        jobs = [job for job in self._adoption.app.backend.find_jobs(wanted) if job is not None]
        answer: dict[str, dict[str, Any]] = {}
        for job in jobs:
            kind = "active" if job.state is State.EXECUTING else "ready" if job.state.ended else "reserved"
            answer.setdefault(job.worker_id or "headway", {})[str(job.job_id)] = [kind, _shown(job)]
        return self._answer("query_task", answer, *ids)

    def _answer(self, question: str, ours: dict[str, Any], *args: Any) -> dict[str, Any] | None:
        """Return Headway's answers with those of Celery's workers, or None as Celery does if no worker answers."""
        if self._destination is not None:
            ours = {name: answer for name, answer in ours.items() if name in self._destination}
        theirs: dict[str, Any] = {}
        if self._make_original is not None:
            theirs = (getattr(self._make_original(), question)(*args) or {}) if self._adoption.broker.answers() else {}
        return {**theirs, **ours} or None

    def _stats(self) -> Any:
        headway = self._adoption.headway
        return headway.portal.run(headway.client.stats())

    def _workers(self) -> dict[str, Any]:
        return {worker.worker_id: worker for worker in self._stats().live_workers}

    def _find(self, state: State) -> list[JobRecord]:
        headway = self._adoption.headway
        found = headway.portal.run(headway.client.find(JobQuery(states=(state,), limit=LISTED)))
        return [job for job in found if self._adoption.adopts(job.task)]

    def _jobs_by_worker(self) -> dict[str, list[dict[str, Any]]]:
        answer: dict[str, list[dict[str, Any]]] = {name: [] for name in self._workers()}
        for job in self._find(State.EXECUTING):
            answer.setdefault(job.worker_id or "headway", []).append(_shown(job))
        return answer


def _listed(names: Any) -> Iterable[str]:
    return [names] if isinstance(names, str) else names


def _shown(job: JobRecord) -> dict[str, Any]:
    message = read_message(job.payload)
    return {
        "id": str(job.job_id),
        "name": job.task,
        "type": job.task,
        "args": message.args,
        "kwargs": message.kwargs,
        "hostname": job.worker_id,
        "time_start": None if job.started_at is None else job.started_at / 1_000,
        "acknowledged": False,
        "delivery_info": {"exchange": "", "routing_key": message.queue, "priority": message.priority},
        "worker_pid": None,
    }
