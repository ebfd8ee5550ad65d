"""The Celery app of the project."""

import os

from celery import Celery
from django.conf import settings

from headway.integrations.celery import adopt

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")

app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
if settings.HEADWAY:
    adopt(app, **settings.HEADWAY)
