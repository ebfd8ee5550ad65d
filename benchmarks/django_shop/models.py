"""A model whose rows are about as large as those of a job."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """A row that a view would save instead of a job."""

    article = models.CharField(max_length=100)
    state = models.CharField(max_length=20)
    payload = models.JSONField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        app_label = "django_shop"
