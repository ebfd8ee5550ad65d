"""Jobs in the admin: to look at, to cancel, to run again. Nothing else about a job can be changed there."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin, messages
from django.utils import timezone
from django.utils.html import format_html

from headway.core.errors import HeadwayError
from headway.core.job import State
from headway.integrations.django.models import IOAttempt, IOJob
from headway.integrations.django.queue import queue
from headway.integrations.django.status import look

_FACTS = ("id", "task_name", "status_shown", "why", "reason", "lane", "tenant", "progress_shown", "trace_id")
_TIMES = ("queued_at", "scheduled_at", "picked_at", "visible_until", "finished_at", "picked_by")
_TRIES = ("attempts", "max_retries", "last_error", "traceback")
_DATA = ("arguments", "result_shown", "dedupe_key")


class _ReadOnly:
    """Whoever may view may view; adding, changing and deleting is not for anybody."""

    def has_add_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return False


class AttemptInline(_ReadOnly, admin.TabularInline):
    """The attempts that did not complete the job."""

    model = IOAttempt
    fields = ("number", "picked_at", "finished_at", "picked_by", "reason", "error")
    readonly_fields = fields
    ordering = ("number",)
    can_delete = False
    extra = 0
    verbose_name_plural = "attempts that did not complete it"

    def has_view_permission(self, request: Any, obj: Any = None) -> bool:
        """Attempts are a part of their job."""
        return bool(request.user.has_perm("ioqueue.view_iojob"))


@admin.register(IOJob)
class IOJobAdmin(_ReadOnly, admin.ModelAdmin):
    """The list has filters, search and numbers; the page of a job its attempts and error."""

    list_display = ("task_name", "status_shown", "queued_at", "waited", "attempts", "error", "picked_by", "id")
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

    def has_manage_permission(self, request: Any) -> bool:
        """Cancelling and running again has a permission of its own."""
        return bool(request.user.has_perm("ioqueue.manage_iojob"))

    def get_queryset(self, request: Any) -> Any:
        """The list needs neither arguments nor results, which may be large."""
        found = super().get_queryset(request)
        on_a_page = getattr(request.resolver_match, "url_name", "").endswith("_changelist")
        return found.defer("args", "kwargs", "result", "last_traceback") if on_a_page else found

    def changelist_view(self, request: Any, extra_context: dict[str, Any] | None = None) -> Any:
        context: dict[str, Any] = {"queue_status": None, "queue_problem": ""}
        if self.has_view_permission(request):
            try:
                context["queue_status"] = look(queue())
            except HeadwayError as problem:
                context["queue_problem"] = str(problem)
        return super().changelist_view(request, context | (extra_context or {}))

    @admin.display(description="status", ordering="status")
    def status_shown(self, job: Any) -> Any:
        """Tell the endings that IOQueue calls ``error`` apart."""
        return job.status if job.status != "error" else f"error ({job.state.replace('_', ' ')})"

    @admin.display(description="error")
    def error(self, job: Any) -> Any:
        first = job.last_error.partition("\n")[0]
        return first if len(first) <= 80 else f"{first[:79]}…"

    @admin.display(description="waited")
    def waited(self, job: Any) -> Any:
        """How long it took from when it was due until it was picked, or until now."""
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
        """Pending ones end at once; running ones are asked to stop."""
        states = queue().cancel_jobs(_live(jobs), who=_who(request))
        self._tell(request, sum(state is State.CANCELLED for state in states), "cancelled")
        self._tell(request, sum(state is State.EXECUTING for state in states), "asked to stop")
        self._left(request, jobs, len(states))

    @admin.action(description="Retry selected jobs, counts reset", permissions=["manage"])
    def retry_jobs(self, request: Any, jobs: Any) -> None:
        """All that ended but were not done."""
        self._again(request, jobs, jobs.filter(status="error"))

    @admin.action(description="Replay selected dead letters", permissions=["manage"])
    def replay_jobs(self, request: Any, jobs: Any) -> None:
        """Only those whose retries were used up."""
        self._again(request, jobs, jobs.filter(state="dead_letter"))

    def _again(self, request: Any, jobs: Any, fit: Any) -> None:
        states = queue().retry_jobs(list(fit.values_list("pk", flat=True)), who=_who(request))
        queued = sum(state is State.QUEUED for state in states)
        self._tell(request, queued, "queued again")
        self._left(request, jobs, queued)

    def _tell(self, request: Any, count: int, what: str) -> None:
        if count:
            self.message_user(request, f"{count} job{'' if count == 1 else 's'} {what}.", messages.SUCCESS)

    def _left(self, request: Any, jobs: Any, done: int) -> None:
        left = jobs.count() - done
        if left > 0:
            self.message_user(request, f"{left} left as they are: their state does not allow it.", messages.WARNING)


def _who(request: Any) -> str:
    return f"django:{request.user.get_username()}"


def _live(jobs: Any) -> list[str]:
    return list(jobs.filter(status__in=("pending", "running")).values_list("pk", flat=True))


def _pretty(value: Any) -> Any:
    return format_html("<pre>{}</pre>", json.dumps(value, indent=2, ensure_ascii=False))
