"""Adoption: existing Celery tasks that run on Headway, chosen by name."""
