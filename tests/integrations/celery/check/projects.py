"""The sources of Celery projects as people write them, for ``headway celery check``."""

from __future__ import annotations

PLAIN = {
    "shop/__init__.py": "from shop.celery import app\n",
    "shop/celery.py": """
from celery import Celery
from celery.schedules import crontab

app = Celery("shop", broker="redis://localhost:1", include=["shop.tasks"])
app.conf.update(
    task_routes={"shop.tasks.export": {"queue": "bulk"}},
    task_acks_late=True,
    worker_concurrency=8,
    worker_max_tasks_per_child=100,
    worker_max_memory_per_child=200_000,
    beat_schedule={"nightly": {"task": "shop.tasks.export", "schedule": crontab(hour=3), "args": (1,)}},
)
""",
    "shop/tasks.py": """
from celery import chain, shared_task
from celery.exceptions import SoftTimeLimitExceeded
from celery.result import AsyncResult
from celery.signals import task_failure


@shared_task(bind=True, max_retries=3, soft_time_limit=50, time_limit=60, rate_limit="10/m")
def export(self, account):
    try:
        return {"id": self.request.id, "account": account}
    except SoftTimeLimitExceeded as problem:
        raise self.retry(exc=problem, countdown=5)


@shared_task(priority=0)
def mail(to):
    export.apply_async((to,), countdown=3, queue="bulk")
    chain(export.s(1), mail.si("x")).delay()
    return AsyncResult("x").state


@task_failure.connect
def failed(**_):
    pass
""",
    "tests/test_shop.py": "self.replace(other)\n",
    ".venv/lib/bad.py": "self.replace(other)\n",
}

HARD = {
    "legacy.py": """
from celery import Celery, Task
from celery.schedules import solar

app = Celery("legacy", broker="amqp://localhost:1")
app.conf.task_serializer = "pickle"
app.conf.accept_content = ["pickle", "json"]
app.conf.beat_scheduler = "django_celery_beat.schedulers:DatabaseScheduler"
app.conf.beat_schedule = {
    "dawn": {"task": "legacy.reset", "schedule": solar("sunrise", 52.5, 13.4)},
    "gone": {"task": "legacy.removed", "schedule": 60.0},
    "quick": {"task": "legacy.reset", "schedule": 0.5},
}


class Base(Task):
    abstract = True

    def on_failure(self, *args):
        pass


@app.task(base=Base, bind=True, name="legacy.reset", priority=9)
def reset(self, page=0):
    if page:
        raise self.retry(args=(page + 1,))
    self.add_to_chord(other.s(page))


@app.task(name="legacy.other", serializer="pickle", colour="red")
def other(page):
    app.control.inspect().active()
    app.control.broadcast("x")
""",
    "ephem.py": "class Observer: ...\n",  # Stands for the library that solar schedules import.
    "broken.py": "def (:\n",
}
