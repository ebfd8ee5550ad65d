"""A task whose name does not lead to its module. No ``tasks`` imports it."""

from __future__ import annotations

from headway.integrations.django import io_task


@io_task(name="shop.well_named")
def lost() -> None: ...
