"""Ada submits 1,000 images, and Bob submits one right after her."""

from __future__ import annotations

from shop import make_image

from headway.integrations.celery import enqueue_bulk, get_all_queue_loads

enqueue_bulk(make_image.s("ada", number) for number in range(1_000))
make_image.delay("bob", 1)
for queue, (pending, running) in get_all_queue_loads().items():
    if pending or running:
        print(f"{queue}: {pending} pending, {running} running")
