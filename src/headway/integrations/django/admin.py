"""Jobs in the admin. Users can view, cancel and retry them, but not edit them."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import path, reverse
from django.utils import timezone
from django.utils.html import format_html

from headway.core.errors import HeadwayError
from headway.core.job import State
from headway.core.policy.units import plural
from headway.integrations.django.models import IOAttempt, IOJob
from headway.integrations.django.queue import queue
from headway.integrations.django.status import read_status
from headway.observability.traces import shown_trace

_FACTS = ("id", "task_name", "status_shown", "why", "reason", "lane", "tenant", "progress_shown", "trace_shown")
_TIMES = ("queued", "scheduled", "picked", "visible", "finished", "picked_by")
_TRIES = ("attempts", "max_retries", "last_error", "traceback")
_DATA = ("arguments", "result_shown", "dedupe_key")


class _ReadOnly:
    """Users with the view permission may view. No user may add, change or delete."""

    def has_add_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return False


def _time_field(name: str, description: str) -> Any:
    """Return a column that shows a moment in milliseconds, because attempts may follow within one second."""

    @admin.display(description=description, ordering=name)
    def show(_: Any, row: Any) -> str:
        moment = getattr(row, name)
        if moment is None:
            return ""
        if timezone.is_aware(moment):
            moment = timezone.localtime(moment)
        return str(moment.isoformat(" ", "milliseconds")[:23])

    return show


class AttemptInline(_ReadOnly, admin.TabularInline):
    """The attempts that did not complete the job."""

    model = IOAttempt
    fields = ("number", "picked", "finished", "picked_by", "reason", "error")
    readonly_fields = fields
    ordering = ("number",)
    can_delete = False
    extra = 0
    verbose_name_plural = "attempts that did not complete it"

    picked = _time_field("picked_at", "picked at")
    finished = _time_field("finished_at", "finished at")

    def has_view_permission(self, request: Any, obj: Any = None) -> bool:
        """Return whether the user may view jobs, because attempts are part of their job."""
        return bool(request.user.has_perm("ioqueue.view_iojob"))


@admin.register(IOJob)
class IOJobAdmin(_ReadOnly, admin.ModelAdmin):
    """The list has filters, search and totals. The page of a job shows its attempts and its error."""

    list_display = ("task_name", "status_shown", "queued_to_the_second", "waited", "attempts", "error", "short_id")
    list_display_links = ("task_name",)
    list_filter = ("status", "state", "lane", "task_name")
    search_fields = ("id", "task_name", "tenant", "picked_by", "trace_id")
    search_help_text = "Searches id, task, tenant, worker and trace id."
    list_per_page = 50
    show_full_result_count = False
    ordering = ("-seq",)
    fieldsets = (
        (None, {"fields": _FACTS}),
        ("When and where", {"fields": _TIMES}),
        ("Attempts", {"fields": _TRIES}),
        ("Data", {"fields": _DATA}),
    )
    inlines = (AttemptInline,)
    actions = ("cancel_jobs", "retry_jobs", "replay_jobs")
    change_list_template = "admin/ioqueue/iojob/change_list.html"
    change_form_template = "admin/ioqueue/iojob/change_form.html"

    queued = _time_field("queued_at", "queued at")
    scheduled = _time_field("scheduled_at", "scheduled at")
    picked = _time_field("picked_at", "picked at")
    visible = _time_field("visible_until", "visible until")
    finished = _time_field("finished_at", "finished at")

    def has_manage_permission(self, request: Any) -> bool:
        """Return whether the user may cancel and retry jobs."""
        return bool(request.user.has_perm("ioqueue.manage_iojob"))

    def get_queryset(self, request: Any) -> Any:
        """Return the jobs. The list defers arguments and results, which may be large."""
        found = super().get_queryset(request)
        on_a_page = getattr(request.resolver_match, "url_name", "").endswith("_changelist")
        return found.defer("args", "kwargs", "result", "last_traceback") if on_a_page else found

    def changelist_view(self, request: Any, extra_context: dict[str, Any] | None = None) -> Any:
        context: dict[str, Any] = {"queue_status": None, "queue_problem": ""}
        if self.has_view_permission(request):
            try:
                context["queue_status"] = read_status(queue())
            except HeadwayError as problem:
                context["queue_problem"] = str(problem)
        return super().changelist_view(request, context | (extra_context or {}))

    def get_urls(self) -> list[Any]:
        """Return the URLs, including the one for the buttons on a job's page."""
        act = path("<path:object_id>/act/", self.admin_site.admin_view(self.act_view), name="ioqueue_iojob_act")
        return [act, *super().get_urls()]

    def act_view(self, request: Any, object_id: str) -> Any:
        """Cancel or retry one job, and redirect to its page."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not (self.has_view_permission(request) and self.has_manage_permission(request)):
            raise PermissionDenied
        jobs = self.get_queryset(request).filter(pk=unquote(object_id))
        actions = {"cancel": self.cancel_jobs, "retry": self.retry_jobs}
        if not jobs or request.POST.get("verb") not in actions:
            raise Http404
        actions[request.POST["verb"]](request, jobs)
        return HttpResponseRedirect(reverse("admin:ioqueue_iojob_change", args=[object_id]))

    def change_view(
        self, request: Any, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> Any:
        """Show a job, with a button for each action that its status allows."""
        verbs: list[str] = []
        if self.has_manage_permission(request):
            status = self.get_queryset(request).filter(pk=unquote(object_id)).values_list("status", flat=True).first()
            verbs = {"pending": ["cancel"], "running": ["cancel"], "error": ["retry"]}.get(status or "", [])
        return super().change_view(request, object_id, form_url, {"job_verbs": verbs} | (extra_context or {}))

    @admin.display(description="status", ordering="status")
    def status_shown(self, job: Any) -> Any:
        """Return the status, with the exact end state of jobs that IOQueue calls ``error``."""
        return job.status if job.status != "error" else f"error ({job.state.replace('_', ' ')})"

    @admin.display(description="queued at", ordering="queued_at")
    def queued_to_the_second(self, job: Any) -> Any:
        return type(self).queued(self, job)[:19]

    @admin.display(description="id", ordering="id")
    def short_id(self, job: Any) -> Any:
        """Return the random end of the id, which is enough to distinguish jobs in a list."""
        return job.pk if len(job.pk) <= 12 else f"…{job.pk[-12:]}"

    @admin.display(description="trace id")
    def trace_shown(self, job: Any) -> Any:
        """Return the trace id as in the logs: the job's own, or one derived from the job id."""
        return shown_trace(job.trace_id or None, job.pk)

    @admin.display(description="error")
    def error(self, job: Any) -> Any:
        first = job.last_error.partition("\n")[0]
        return first if len(first) <= 60 else f"{first[:59]}…"

    @admin.display(description="waited")
    def waited(self, job: Any) -> Any:
        """Return the time from when the job was due until a worker picked it, or until now."""
        until = timezone.now() if job.status == "pending" else job.picked_at or job.finished_at
        return "" if until is None else f"{max(0.0, (until - job.scheduled_at).total_seconds()):,.1f} s"

    @admin.display(description="waits because")
    def why(self, job: Any) -> Any:
        return "; ".join(queue().why(job.pk)) if job.status == "pending" else ""

    @admin.display(description="progress")
    def progress_shown(self, job: Any) -> Any:
        return "" if job.progress is None or job.status != "running" else f"{job.progress:.0%} {job.note or ''}"

    @admin.display(description="arguments")
    def arguments(self, job: Any) -> Any:
        return _pretty({"args": job.args, "kwargs": job.kwargs} if job.args else job.kwargs)

    @admin.display(description="result")
    def result_shown(self, job: Any) -> Any:
        return job.result_error or ("" if job.status != "done" else _pretty(job.result))

    @admin.display(description="traceback")
    def traceback(self, job: Any) -> Any:
        return format_html("<pre>{}</pre>", job.last_traceback) if job.last_traceback else ""

    @admin.action(description="Cancel selected jobs", permissions=["manage"])
    def cancel_jobs(self, request: Any, jobs: Any) -> None:
        """Cancel jobs. Pending jobs end at once; workers are requested to stop running jobs."""
        live = jobs.filter(status__in=("pending", "running"))
        states = queue().cancel_jobs(list(live.values_list("pk", flat=True)), who=_operator(request))
        self._show_message(request, sum(state is State.CANCELLED for state in states), "cancelled")
        self._show_message(request, sum(state is State.EXECUTING for state in states), "asked to stop")
        self._left(request, jobs, len(states))

    @admin.action(description="Retry selected jobs, counts reset", permissions=["manage"])
    def retry_jobs(self, request: Any, jobs: Any) -> None:
        """Retry all jobs that ended without completing."""
        self._again(request, jobs, jobs.filter(status="error"))

    @admin.action(description="Replay selected dead letters", permissions=["manage"])
    def replay_jobs(self, request: Any, jobs: Any) -> None:
        """Retry only dead letters, the jobs whose retries were used up."""
        self._again(request, jobs, jobs.filter(state="dead_letter"))

    def _again(self, request: Any, jobs: Any, fit: Any) -> None:
        states = queue().retry_jobs(list(fit.values_list("pk", flat=True)), who=_operator(request))
        queued = sum(state is State.QUEUED for state in states)
        self._show_message(request, queued, "queued again")
        self._left(request, jobs, queued)

    def _show_message(self, request: Any, count: int, what: str) -> None:
        if count:
            self.message_user(request, f"{plural(count, 'job')} {what}.", messages.SUCCESS)

    def _left(self, request: Any, jobs: Any, done: int) -> None:
        left = jobs.count() - done
        if left > 0:
            self.message_user(request, f"{left} left as they are: their state does not allow it.", messages.WARNING)


def _operator(request: Any) -> str:
    return f"django:{request.user.get_username()}"


def _pretty(value: Any) -> Any:
    return format_html("<pre>{}</pre>", json.dumps(value, indent=2, ensure_ascii=False))
