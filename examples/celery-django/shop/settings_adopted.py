"""The second step: the tasks of orders run on Headway, and the others stay on Celery."""

from shop.settings import *  # noqa: F403
from shop.settings import DATA

HEADWAY = {"store": f"sqlite:///{DATA}/headway.db", "only": ["orders.*"]}
