"""A task of Django Tasks in a module that no ``tasks`` imports."""

from __future__ import annotations

from tests.integrations.django.names import task


@task
def welcome(name: str) -> str:
    return f"welcome {name}"
