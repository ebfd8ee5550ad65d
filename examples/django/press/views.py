"""One page: a form that submits jobs, and the latest jobs."""

from __future__ import annotations

from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.utils import timezone

from headway.integrations.django.models import IOJob
from press.tasks import print_book


def index(request: HttpRequest) -> HttpResponse:
    """Show the form and the jobs."""
    return render(request, "index.html")


@transaction.atomic
def order(request: HttpRequest) -> HttpResponse:
    """Submit a job in the transaction of the request, so that all of the request is saved or nothing."""
    print_book(request.POST["title"][:100], min(200, int(request.POST["pages"])))
    return redirect("index")


def jobs(request: HttpRequest) -> JsonResponse:
    """Show the progress of the latest jobs."""
    found = IOJob.objects.all()[:20]
    return JsonResponse({"jobs": [_shown(job) for job in found]})


def _shown(job: IOJob) -> dict[str, object]:
    waited = (job.picked_at or job.finished_at or timezone.now()) - job.queued_at
    return {
        "id": job.id,
        "title": job.kwargs["title"],
        "status": job.status,
        "progress": job.progress or 0,
        "note": job.note,
        "waited": round(waited.total_seconds(), 1),
        "result": job.result,
        "error": job.last_error,
    }
