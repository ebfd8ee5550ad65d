"""The app that ``manage.py run_ioqueue`` passes to worker processes: the project with all its tasks."""

from __future__ import annotations

import django

django.setup()

from headway.integrations.django.conf import read_options  # noqa: E402
from headway.integrations.django.connections import keep_connections_fresh  # noqa: E402
from headway.integrations.django.loading import adopt_django_tasks, load_task_modules  # noqa: E402
from headway.integrations.django.outcomes import Outcomes, has_django_tasks  # noqa: E402
from headway.integrations.django.queue import is_of_django_tasks, queue  # noqa: E402

app = queue()
load_task_modules(read_options()[0].task_modules)
adopt_django_tasks()
keep_connections_fresh(app)
app.in_worker = True
if has_django_tasks():
    outcomes = Outcomes(lambda name: name in app.tasks and is_of_django_tasks(app.tasks[name]))
    app.on_recorded = outcomes
    app.lifespan = outcomes.around(app.lifespan)
