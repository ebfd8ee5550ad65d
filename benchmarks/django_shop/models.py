"""A row of about the size of a job's."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """What a view would save instead."""

    article = models.CharField(max_length=100)
    state = models.CharField(max_length=20)
    payload = models.JSONField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        app_label = "django_shop"
