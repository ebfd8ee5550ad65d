"""The tests of the shop: `python -m unittest tests`, while its workers run. They are the same in all three steps."""

import unittest

import django

django.setup()

from orders.models import Order  # noqa: E402
from orders.tasks import count, invoice, place_order  # noqa: E402

PATIENCE = 60


class OrderTests(unittest.TestCase):
    """Tests of everything that the shop promises."""

    def test_an_order_is_invoiced_and_mailed(self):
        order, result = place_order("acme")
        assert result.get(timeout=PATIENCE) == f"sent invoice {order.pk} for acme"
        order.refresh_from_db()
        assert (order.invoice, order.mailed) == (f"invoice {order.pk} for acme", True)
        assert (result.state, result.parent.state) == ("SUCCESS", "SUCCESS")

    def test_a_busy_printer_is_tried_again(self):
        order, result = place_order("acme", busy=1)
        result.get(timeout=PATIENCE)
        order.refresh_from_db()
        assert order.attempts == 2

    def test_a_revoked_order_has_no_invoice(self):
        order = Order.objects.create(customer="acme")
        result = invoice.apply_async((order.pk, "acme"), countdown=3_600)
        result.revoke()
        order.refresh_from_db()
        assert order.invoice == ""

    def test_orders_are_counted(self):
        before = Order.objects.count()
        assert count.delay().get(timeout=PATIENCE) >= before
