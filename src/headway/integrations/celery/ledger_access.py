"""Open a ledger from the command line, by an app as in ``celery -A`` or by an address."""

from __future__ import annotations

from headway.core.errors import ConfigError
from headway.integrations.celery.app_import import import_celery_app
from headway.integrations.celery.balancer import Balancer, balancer_of
from headway.integrations.celery.ledger import Ledger
from headway.stores.redis.address import read_redis_address


def open_balancer(path: str) -> Balancer:
    """Import an app and return its balancer. Raises ``ConfigError``."""
    return balancer_of(import_celery_app(path))


def open_ledger(url: str, prefix: str) -> Ledger:
    """Return the ledger at an address in Headway's notation. Raises ``ConfigError``."""
    place = read_redis_address(url)
    if place.cluster:
        raise ConfigError("a ledger is on one server, or behind Sentinels, not in a cluster")
    return Ledger(place, prefix)
