"""Reads a Celery project and reports what becomes of it on Headway, before anything moves."""
