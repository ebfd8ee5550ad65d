"""A small shop: Django takes orders, Celery tasks work on them."""

from shop.celery import app

__all__ = ["app"]
