"""A table that the tasks of the tests write."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """A row that a request saves and a job reads."""

    article = models.CharField(max_length=200)
    handled_by = models.CharField(max_length=200, default="")

    class Meta:
        app_label = "shop"
