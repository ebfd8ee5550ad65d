"""The project as an app for ``manage.py headway``: its tasks, and its store on separate connections."""

from __future__ import annotations

from headway.client.client import Client
from headway.integrations.django.address import store_address
from headway.integrations.django.conf import read_options
from headway.integrations.django.loading import adopt_django_tasks, load_task_modules
from headway.integrations.django.queue import queue

app = queue()
load_task_modules(read_options()[0].task_modules)
adopt_django_tasks()
app.configure(store=store_address())
app.client = Client(app.make_store, lambda: app.settings.history)  # A command joins no transaction.
