"""The models, and the views they read. Headway's own tables are made before: see ``apps.prepare_tables``."""

from django.db import migrations, models

from headway.integrations.django.views import drop_views, make_views

STATUSES = [("pending", "Pending"), ("running", "Running"), ("done", "Done"), ("error", "Error")]


class Migration(migrations.Migration):
    """The first."""

    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            name="IOAttempt",
            fields=[
                ("id", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("number", models.IntegerField()),
                ("picked_by", models.CharField(max_length=255, null=True)),
                ("picked_at", models.DateTimeField()),
                ("finished_at", models.DateTimeField()),
                ("reason", models.TextField()),
                ("error", models.TextField()),
                ("traceback", models.TextField()),
                ("namespace", models.CharField(max_length=64)),
            ],
            options={
                "verbose_name": "failed attempt",
                "db_table": "ioqueue_ioattempt",
                "ordering": ("job", "number"),
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="IOJob",
            fields=[
                ("id", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("task_name", models.CharField(max_length=255)),
                ("args", models.JSONField()),
                ("kwargs", models.JSONField()),
                ("dedupe_key", models.CharField(max_length=400, null=True)),
                ("status", models.CharField(choices=STATUSES, max_length=10)),
                ("queued_at", models.DateTimeField()),
                ("picked_at", models.DateTimeField(null=True)),
                ("visible_until", models.DateTimeField(null=True)),
                ("picked_by", models.CharField(max_length=255, null=True)),
                ("scheduled_at", models.DateTimeField()),
                ("attempts", models.IntegerField(help_text="How many attempts have failed.")),
                ("max_retries", models.IntegerField()),
                ("last_error", models.TextField()),
                ("result", models.JSONField(null=True)),
                (
                    "state",
                    models.CharField(
                        help_text="The status in Headway's words, which tell endings apart.", max_length=12
                    ),
                ),
                ("finished_at", models.DateTimeField(null=True)),
                ("last_traceback", models.TextField()),
                (
                    "result_error",
                    models.TextField(help_text="Why the result could not be kept; the job is done nevertheless."),
                ),
                ("reason", models.TextField(null=True)),
                ("lane", models.CharField(max_length=64)),
                ("tenant", models.CharField(max_length=255, null=True)),
                ("progress", models.FloatField(null=True)),
                ("note", models.TextField(null=True)),
                ("trace_id", models.CharField(max_length=255)),
                (
                    "asked",
                    models.JSONField(
                        help_text="How it was submitted, if by Django Tasks: queue, priority and so on.", null=True
                    ),
                ),
                ("namespace", models.CharField(max_length=64)),
                ("seq", models.BigIntegerField()),
            ],
            options={
                "verbose_name": "job",
                "db_table": "ioqueue_iojob",
                "ordering": ("-seq",),
                "permissions": (("manage_iojob", "Can cancel, retry and replay jobs"),),
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
        migrations.RunPython(make_views, drop_views),
    )
