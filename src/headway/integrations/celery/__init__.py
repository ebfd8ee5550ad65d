"""Celery tasks that run on Headway: ``adopt(app)``. Queues for Celery that are chosen by load: ``install(app)``."""

from headway.integrations.celery.adoption.adoption import Adoption, adopt, adoption_of
from headway.integrations.celery.balancer import Balancer, balancer_of
from headway.integrations.celery.functions import (
    decrement_pending,
    decrement_running,
    enqueue_bulk,
    enqueue_task_to_user_queue,
    enqueue_task_with_load_balancing,
    get_all_queue_loads,
    get_queue_load,
    increment_pending,
    increment_running,
    install,
    reset_queue_counters,
    select_best_queue,
)

__all__ = [
    "Adoption", "Balancer", "adopt", "adoption_of", "balancer_of",
    "decrement_pending", "decrement_running", "enqueue_bulk", "enqueue_task_to_user_queue",
    "enqueue_task_with_load_balancing", "get_all_queue_loads", "get_queue_load", "increment_pending",
    "increment_running", "install", "reset_queue_counters", "select_best_queue",
]  # fmt: skip
