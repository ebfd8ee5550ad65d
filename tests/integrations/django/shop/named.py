"""A task whose name does not lead to its module, which no ``tasks`` imports."""

from __future__ import annotations

from headway.integrations.django import io_task


@io_task(name="shop.well_named")
def lost() -> None: ...
