"""Jobs as Django models. They are database views of Headway's own tables, so no data is stored twice."""

from __future__ import annotations

from typing import Any

from django.db import models

from headway.integrations.django.conf import read_options


class _OfThisProject(models.Manager):
    """Selects the jobs of this project, by the database and the namespace of the settings."""

    def get_queryset(self) -> Any:
        options, _ = read_options()
        return super().get_queryset().using(options.database).filter(namespace=options.namespace)


class IOJob(models.Model):
    """A durable job, read only. Tasks create jobs, workers run them, and the admin's actions cancel and retry them."""

    class Status(models.TextChoices):
        PENDING = "pending"
        RUNNING = "running"
        DONE = "done"
        ERROR = "error"

    id = models.CharField(primary_key=True, max_length=64)
    task_name = models.CharField(max_length=255)
    args = models.JSONField()
    kwargs = models.JSONField()
    dedupe_key = models.CharField(max_length=400, null=True)
    status = models.CharField(max_length=10, choices=Status.choices)
    queued_at = models.DateTimeField()
    picked_at = models.DateTimeField(null=True)
    visible_until = models.DateTimeField(null=True)
    picked_by = models.CharField(max_length=255, null=True)
    scheduled_at = models.DateTimeField()
    attempts = models.IntegerField(help_text="How many attempts have failed.")
    max_retries = models.IntegerField()
    last_error = models.TextField()
    result = models.JSONField(null=True)

    # Fields that IOQueue did not have.
    state = models.CharField(max_length=12, help_text="The status in Headway's words, which tell endings apart.")
    finished_at = models.DateTimeField(null=True)
    last_traceback = models.TextField()
    result_error = models.TextField(help_text="Why the result could not be kept; the job is done nevertheless.")
    reason = models.TextField(null=True)
    lane = models.CharField(max_length=64)
    tenant = models.CharField(max_length=255, null=True)
    progress = models.FloatField(null=True)
    note = models.TextField(null=True)
    trace_id = models.CharField(max_length=255)
    asked = models.JSONField(
        null=True, help_text="How it was submitted, if by Django Tasks: queue, priority and so on."
    )
    namespace = models.CharField(max_length=64)
    seq = models.BigIntegerField()

    objects = _OfThisProject()

    class Meta:
        managed = False
        db_table = "ioqueue_iojob"
        ordering = ("-seq",)
        verbose_name = "job"
        default_permissions = ("view",)
        permissions = (("manage_iojob", "Can cancel, retry and replay jobs"),)

    def __str__(self) -> str:
        return f"{self.task_name} ({self.id})"

    def save(self, *_: Any, **__: Any) -> None:
        """Raise ``TypeError``. Call the task to create a job."""
        raise TypeError("an IOJob is read only; call the task to make one")

    def delete(self, *_: Any, **__: Any) -> Any:
        """Raise ``TypeError``. Cancel the job instead; the policy decides how long ended jobs are kept."""
        raise TypeError("an IOJob is read only; cancel the job instead")


class IOAttempt(models.Model):
    """One run of a job that did not complete it."""

    id = models.CharField(primary_key=True, max_length=64)
    job = models.ForeignKey(IOJob, on_delete=models.DO_NOTHING, related_name="history", db_constraint=False)
    number = models.IntegerField()
    picked_by = models.CharField(max_length=255, null=True)
    picked_at = models.DateTimeField()
    finished_at = models.DateTimeField()
    reason = models.TextField()
    error = models.TextField()
    traceback = models.TextField()
    namespace = models.CharField(max_length=64)

    objects = _OfThisProject()

    class Meta:
        managed = False
        db_table = "ioqueue_ioattempt"
        ordering = ("job", "number")
        verbose_name = "failed attempt"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"attempt {self.number}: {self.reason}"
