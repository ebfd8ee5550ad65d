"""Chains, graphs and batches of ``@io_task``, in the transactions of the caller."""

# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false
# (Django brings no types, and what pyright makes of its code is not always so.)

from __future__ import annotations

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from headway.core.errors import CycleError
from headway.core.job import State
from headway.integrations.django import queue
from headway.integrations.django.models import IOJob
from tests.integrations.django.conftest import Worker, both, wait_until
from tests.integrations.django.shop import tasks
from tests.integrations.django.shop.models import Order

pytestmark = [pytest.mark.xdist_group("django"), both]


def test_a_chain_is_stored_with_the_callers_changes_or_not_at_all() -> None:
    with transaction.atomic():
        Order.objects.create(article="book")
        job = tasks.add.call(1, 2).then(tasks.add.task, 10).enqueue()
        assert IOJob.objects.filter(pk=job.id).exists()
        transaction.set_rollback(True)
    assert (Order.objects.count(), IOJob.objects.count()) == (0, 0)
    with transaction.atomic():
        job = tasks.add.call(1, 2).then(tasks.add.task, 10).enqueue()
    assert IOJob.objects.count() == 2
    assert job.record().held
    assert job.why()[0].code == "depends"


def test_a_chain_runs_and_passes_results_on(worker: Worker) -> None:
    job = tasks.add.call(1, 2).then(tasks.add.task, 10).enqueue()
    wait_until(lambda: job.status() is State.COMPLETED, worker)
    assert job.result() == 13


def test_a_call_can_wait_for_a_job_that_exists(worker: Worker) -> None:
    first = tasks.fail.enqueue("no such paper")
    after = tasks.add.using(after=[first], on_failure="run").enqueue(1)
    held = tasks.add.using(after=[first], on_failure="hold")(2)
    wait_until(lambda: after.status() is State.COMPLETED, worker)
    assert queue().job(held or "").record().held


def test_a_wrong_graph_leaves_nothing_in_the_transaction() -> None:
    one, two = tasks.add.call(1), tasks.add.call(2)
    with transaction.atomic():
        Order.objects.create(article="book")
        with pytest.raises(CycleError):
            queue().enqueue_many([one.after(two), two.after(one)])
    assert (Order.objects.count(), IOJob.objects.count()) == (1, 0)


def test_a_batch_runs_its_callback(worker: Worker) -> None:
    with queue().batch("sums") as batch:
        batch.add(tasks.add.call(number, 1) for number in range(5))
        done = batch.on_done(tasks.add.task, 40, 2)
    assert batch.join(timeout=60).completed == 5
    wait_until(lambda: done.status() is State.COMPLETED, worker)
    assert sorted(batch.results()) == [1, 2, 3, 4, 5]


def test_a_chain_from_a_coroutine() -> None:
    async def view() -> str:
        return (await tasks.add.call(1).then(tasks.add.task).aenqueue()).id

    assert IOJob.objects.filter(pk=async_to_sync(view)()).exists()
