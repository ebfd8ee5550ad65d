"""The orders and their state."""

from django.db import models


class Order(models.Model):
    """One order of a customer."""

    customer = models.CharField(max_length=100)
    invoice = models.CharField(max_length=100, blank=True)
    attempts = models.IntegerField(default=0)
    mailed = models.BooleanField(default=False)
    invoiced_at = models.DateTimeField(null=True)

    class Meta:
        app_label = "orders"
