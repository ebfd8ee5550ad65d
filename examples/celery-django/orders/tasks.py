"""The tasks of the shop. They stay as they are in all three steps."""

from celery import chain, shared_task
from django.db.models import F
from django.utils import timezone

from orders.models import Order


class PrinterBusy(Exception):
    """The printer is busy for a while."""


@shared_task(bind=True, autoretry_for=(PrinterBusy,), retry_backoff=1, retry_jitter=False, max_retries=3)
def invoice(self, order_id, customer, busy=0):
    """Write an invoice. The printer is busy for the first ``busy`` attempts."""
    Order.objects.filter(pk=order_id).update(attempts=F("attempts") + 1)
    if self.request.retries < busy:
        raise PrinterBusy(f"order {order_id}")
    text = f"invoice {order_id} for {customer}"
    Order.objects.filter(pk=order_id).update(invoice=text, invoiced_at=timezone.now())
    return text


@shared_task
def mail(text, order_id):
    """Send an invoice to its customer."""
    Order.objects.filter(pk=order_id).update(mailed=True)
    return f"sent {text}"


@shared_task(name="reports.count")
def count():
    """Count the orders. This task stays on Celery."""
    return Order.objects.count()


def place_order(customer, busy=0):
    """Create an order. A chain writes its invoice and mails it later."""
    order = Order.objects.create(customer=customer)
    steps = chain(invoice.s(order.pk, customer, busy=busy), mail.s(order.pk))
    return order, steps.apply_async()
