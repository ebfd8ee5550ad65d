"""The protocol of workers that speak HTTP."""

from __future__ import annotations

from headway.server.routing import Routes

routes = Routes("workers", "/internal/workers")
