"""Open a ledger from the command line, by an app as in ``celery -A`` or by an address."""

from __future__ import annotations

import os
import sys

from celery.app.utils import find_app  # type: ignore[import-untyped]

from headway.core.errors import ConfigError
from headway.integrations.celery.balancer import Balancer, balancer_of
from headway.integrations.celery.ledger import Ledger
from headway.stores.redis.address import read_redis_address


def open_balancer(path: str) -> Balancer:
    """Import an app and return its balancer. Raises ``ConfigError``."""
    sys.path.insert(0, os.getcwd())  # As Celery's own commands do.
    try:
        app = find_app(path)
        app.conf.broker_url  # noqa: B018 - lets its settings be read
    except ConfigError:
        raise
    except Exception as problem:
        message = f"the Celery app {path} cannot be imported: {type(problem).__name__}: {problem}"
        raise ConfigError(message) from problem
    finally:
        sys.path.pop(0)
    return balancer_of(app)


def open_ledger(url: str, prefix: str) -> Ledger:
    """Return the ledger at an address in Headway's notation. Raises ``ConfigError``."""
    place = read_redis_address(url)
    if place.cluster:
        raise ConfigError("a ledger is on one server, or behind Sentinels, not in a cluster")
    return Ledger(place, prefix)
