"""Calls that wait for others, batches and steps, from an application's view."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from headway import (
    BadArguments,
    BadEdge,
    BatchClosed,
    BatchNotFound,
    ConfigError,
    Context,
    CycleError,
    Headway,
    HeadwayError,
    JobCancelled,
    JobFailed,
    Limit,
    PayloadError,
    Results,
    ResultTimeout,
    StepError,
    Unique,
)
from headway.client.batch import RETRIED
from headway.core.job import JobId, State
from headway.stores.memory.store import MemoryStore
from headway.testing import Testbed


class Tasks:
    """A few tasks, which record their arguments."""

    def __init__(self, app: Headway) -> None:
        self.ran: list[Any] = []
        self.failing: set[Any] = set()

        @app.task(name="fetch", max_retries=0)
        def fetch(url: str) -> str:
            self.note(url)
            return f"<{url}>"

        @app.task(name="parse", max_retries=0)
        async def parse(page: str, encoding: str = "utf-8") -> list[int]:
            self.note(page)
            return [len(page), len(encoding)]

        @app.task(name="save", max_retries=0)
        def save(rows: list[int], table: str) -> int:
            self.note(table)
            return sum(rows)

        @app.task(name="row", max_retries=0)
        def row(number: int) -> int:
            self.note(number)
            return number

        @app.task(name="total", max_retries=0)
        def total(parts: Results[int], label: str) -> str:
            self.note("total")
            return f"{label} {sum(parts)}"

        @app.task(name="tell", max_retries=0)
        def tell(what: str) -> str:
            self.note(what)
            return what

        self.fetch, self.parse, self.save, self.row, self.total, self.tell = fetch, parse, save, row, total, tell

    def note(self, what: Any) -> None:
        self.ran.append(what)
        if what in self.failing:
            raise ValueError(f"no {what}")


@pytest.fixture
def tasks(headway: Testbed) -> Tasks:
    return Tasks(headway.app)


# ---------------------------------------------------------------------- after


def test_a_chain_passes_results_on(headway: Testbed, tasks: Tasks) -> None:
    job = tasks.fetch.call("x").then(tasks.parse).then(tasks.save, table="t").enqueue()
    headway.drain()
    assert job.result() == 8
    assert tasks.ran == ["x", "<x>", "t"]


def test_a_graph_is_one_batch_and_names_what_a_job_waits_for(headway: Testbed, tasks: Tasks) -> None:
    first, second = tasks.fetch.call("x"), tasks.fetch.call("y")
    last = tasks.parse.call(first.out, encoding="latin-1").after(second)
    jobs = headway.app.enqueue_many([last, first, second])
    (reason, *_) = jobs[0].why()
    assert (reason.code, reason.facts["left"], reason.facts["of"]) == ("depends", 2, 2)
    assert set(reason.facts["sources"]) == {jobs[1].id, jobs[2].id}
    batch_id = jobs[0].record().batch_id
    assert batch_id is not None
    assert headway.app.batch_of(batch_id).status().total == 3
    headway.drain()
    assert [job.result() for job in jobs] == [[3, 7], "<x>", "<y>"]


def test_results_are_found_inside_lists_and_dicts(headway: Testbed, tasks: Tasks) -> None:
    @headway.app.task(name="join")
    def join(pages: list[str], more: dict[str, Any]) -> str:
        return f"{pages} {more}"

    a, b = tasks.fetch.call("a"), tasks.fetch.call("b")
    job = join.call([a.out, "plain", b.out], {"again": a.out, "deep": [b.out]}).enqueue()
    headway.drain()
    assert job.result() == "['<a>', 'plain', '<b>'] {'again': '<a>', 'deep': ['<b>']}"


def test_a_job_can_wait_for_a_job_that_exists(headway: Testbed, tasks: Tasks) -> None:
    tasks.failing = {"x"}
    first = tasks.fetch.enqueue("x")
    cancelled = tasks.tell.using(after=[first]).enqueue("never")
    runs = tasks.tell.using(after=[first], on_failure="run").enqueue("always")
    waits = tasks.tell.using(after=[first], on_failure="hold").enqueue("later")
    headway.drain()
    assert tasks.ran == ["x", "always"]
    with pytest.raises(JobCancelled) as problem:
        cancelled.result()
    assert problem.value.facts["reason"] == f"upstream {first.id}"
    assert runs.result() == "always"
    assert waits.why()[0].code == "depends"
    tasks.failing = set()
    assert first.retry() is State.QUEUED
    headway.drain()
    assert (waits.result(), cancelled.result()) == ("later", "never")


def test_a_missing_result_fails_the_job_that_wants_it_and_no_other(headway: Testbed, tasks: Tasks) -> None:
    tasks.failing = {"x"}
    first = tasks.fetch.call("x")
    wants = tasks.parse.call(first.out).after(first, on_failure="run")
    only_after = tasks.tell.call("cleaned").after(first, on_failure="run")
    jobs = headway.app.enqueue_many([first, wants, only_after])
    headway.drain()
    with pytest.raises(JobFailed) as problem:
        jobs[1].result()
    assert problem.value.error.type.endswith("UpstreamFailed")
    assert jobs[0].id in problem.value.error.message
    assert jobs[1].status() is State.FAILED
    assert jobs[2].result() == "cleaned"


def test_a_result_of_another_type_is_a_clear_error(headway: Testbed, tasks: Tasks) -> None:
    wrong: Any = tasks.fetch.call("x").out
    job = tasks.save.call(wrong, "t").enqueue()
    headway.drain()
    with pytest.raises(JobFailed) as problem:
        job.result()
    assert problem.value.error.type.endswith("BadArguments")
    assert "rows" in problem.value.error.message


def test_wrong_graphs_are_refused_and_leave_nothing(headway: Testbed, tasks: Tasks) -> None:
    a, b = tasks.fetch.call("a"), tasks.fetch.call("b")
    cycle = [a.after(b), b.after(a)]
    with pytest.raises(CycleError):
        headway.app.enqueue_many(cycle)
    with pytest.raises(ConfigError, match="on_failure"):
        a.after(b, on_failure="ignore")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="calls, jobs and batches"):
        a.after(5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="then must be given a task"):
        a.then(len)  # type: ignore[arg-type]
    with pytest.raises(BadArguments, match="true nor false"):
        bool(a.out)
    with pytest.raises(PayloadError, match=r"\$out"):
        headway.app.task(name="any")(lambda value, other: None).call({"$out": 1}, a.out)
    assert headway.enqueued() == []
    assert headway.app.jobs() == []


def test_each_kind_of_wrong_graph_has_a_code_and_leaves_nothing(headway: Testbed, tasks: Tasks) -> None:
    app, row = headway.app, tasks.row
    passing = app.task(name="passing", persist=False)(lambda: None)
    of_acme = row.using(tenant="acme").enqueue(0)
    with app.batch("over") as over:
        over.add([row.call(0)])
    with app.batch("theirs", tenant="acme") as theirs:
        pass
    headway.drain()
    before, totals = len(app.jobs()), app.stats().totals["submitted"]
    first, fetched = row.call(1), tasks.fetch.call("x")
    wrong: dict[str, tuple[str, Callable[[], object]]] = {
        "a cycle": ("cycle", lambda: app.enqueue_many([first.after(fetched), fetched.after(first)])),
        "a cycle of one": ("cycle", lambda: app.enqueue_many([first.after(first)])),
        "an unknown job": ("bad_edge", lambda: app.enqueue_many([first, row.call(2).after(app.job("0199-absent"))])),
        "another tenant": ("bad_edge", lambda: row.using(tenant="globex", after=[of_acme]).enqueue(2)),
        "a batch of another tenant": ("bad_edge", lambda: row.using(tenant="globex", after=[theirs]).enqueue(2)),
        "after a transient job": ("bad_edge", lambda: app.enqueue_many([first.after(passing.call())])),
        "a transient job": ("bad_edge", lambda: app.enqueue_many([first, passing.call().after(first)])),
        "a transient member": ("bad_edge", lambda: over.add([passing.call()])),
        "too many edges": ("bad_edge", lambda: row.call(2).after(*(row.call(n) for n in range(1_001))).enqueue()),
        "a batch that has ended": ("batch_closed", lambda: over.add([first])),
        "a batch that is not there": ("batch_not_found", lambda: app.batch_of("batch-absent").add([first])),
    }
    codes = {}
    for name, (_, submit) in wrong.items():
        with pytest.raises(HeadwayError) as refused:
            submit()
        codes[name] = refused.value.code
    assert codes == {name: code for name, (code, _) in wrong.items()}
    assert (len(app.jobs()), app.stats().totals["submitted"]) == (before, totals)


def test_tenants_limits_and_uniqueness_need_values_that_exist(headway: Testbed, tasks: Tasks) -> None:
    app = headway.app
    fair: Any = app.task(name="fair", fair_by="who")(lambda who: None)
    limited: Any = app.task(name="limited", limits=[Limit(concurrency=1, by="who")])(lambda who: None)
    unique: Any = app.task(name="unique", unique=Unique(by=["who"]))(lambda who: None)
    for task in (fair, limited, unique):
        with pytest.raises(BadArguments, match="'who'"):
            task.call(tasks.fetch.call("x").out)


def test_dependants_inherit_tenant_and_lane_unless_they_have_their_own(headway: Testbed, tasks: Tasks) -> None:
    @headway.app.task(name="low", priority="low")
    def low(page: str) -> str:
        return page

    first = tasks.fetch.using(priority="high", tenant="acme").call("x")
    middle = first.then(tasks.parse)
    other = low.using(tenant="acme").call(first.out)
    jobs = [job.record() for job in headway.app.enqueue_many([first, middle, other])]
    assert [(job.lane, job.tenant) for job in jobs] == [("high", "acme"), ("high", "acme"), ("low", "acme")]
    assert jobs[1].timeout_ms == headway.app.policy.lanes["high"].timeout_ms


async def test_a_graph_can_be_enqueued_on_a_loop(tasks: Tasks, headway: Testbed) -> None:
    job = await tasks.fetch.call("x").then(tasks.parse).aenqueue()
    await headway.adrain()
    assert await job.aresult() == [3, 5]


def test_assert_enqueued_sees_held_jobs(headway: Testbed, tasks: Tasks) -> None:
    tasks.fetch.call("x").then(tasks.save, table="t")  # type: ignore[arg-type]
    tasks.fetch.call("x").then(tasks.parse, encoding="ascii").enqueue()
    headway.assert_enqueued(tasks.fetch, url="x", count=1)
    headway.assert_enqueued(tasks.parse, encoding="ascii", count=1)


# ---------------------------------------------------------------------- batches


def test_members_and_their_sources_take_the_tenant_of_their_batch(headway: Testbed, tasks: Tasks) -> None:
    app = headway.app
    first, hidden = tasks.fetch.call("x"), tasks.fetch.call("y")
    with app.batch(tenant="acme") as batch:
        batch.add([first, tasks.row.call(1).after(first, hidden)])
    assert batch.status().total == 3
    assert {job.record().tenant for job in app.jobs()} == {"acme"}


def test_a_batch_refuses_members_of_another_tenant(headway: Testbed, tasks: Tasks) -> None:
    app = headway.app
    with app.batch("mine", tenant="acme") as batch:
        foreign = tasks.row.using(tenant="globex").call(2)
        with pytest.raises(BadEdge, match="job 1 of the graph is of another tenant than batch") as refused:
            batch.add([tasks.row.call(1), foreign])
        assert (refused.value.code, refused.value.facts["index"]) == ("bad_edge", 1)
        with pytest.raises(BadEdge, match="must have the same tenant"), app.batch(tenant="globex", parent=batch):
            raise AssertionError("a child of another tenant")
        with pytest.raises(BadEdge, match="of another tenant"):
            tasks.row.using(tenant="globex", after=[batch]).enqueue(1)
    assert (batch.status().total, app.jobs()) == (0, [])


def test_what_is_added_by_an_id_or_by_a_member_or_a_child_has_the_tenant_of_the_batch(headway: Testbed) -> None:
    app = headway.app

    @app.task(name="split", context=True)
    def split(context: Context, depth: int) -> int:
        if depth:
            context.batch.add([split.call(depth - 1)])
            with app.batch("inner", parent=context.batch) as inner:
                inner.add([split.call(0)])
        return depth

    with app.batch("outer", tenant="acme") as batch:
        app.batch_of(batch.id).add([split.call(1)])
        app.batch_of(batch.id).on_done(split, 0)
        with app.batch("beside", parent=app.batch_of(batch.id)):
            pass
    headway.drain()
    assert (batch.status().total, batch.status().completed) == (4, 4)
    assert [job.record().tenant for job in app.jobs()] == ["acme"] * 4


def test_an_error_names_the_place_of_the_call_that_has_it(headway: Testbed, tasks: Tasks) -> None:
    app = headway.app
    late = tasks.row.call(1)
    first = tasks.row.call(2).after(late)
    with pytest.raises(BadEdge, match="job 1 of the graph waits for nowhere") as refused:
        app.enqueue_many([first, late.after(app.job("nowhere"))])
    assert refused.value.facts["index"] == 1


def test_a_batch_runs_its_callbacks_and_shows_its_results(headway: Testbed, tasks: Tasks) -> None:
    app = headway.app
    with app.batch("import-7", tenant="acme", key="import-7") as batch:
        batch.add(tasks.row.call(number) for number in range(1_200))
        done = batch.then(tasks.total, "march")
        failed = batch.on_failure(tasks.tell, "failed")
        ended = batch.on_done(tasks.tell, "ended")
    assert done.why()[0].text == "waits for 1,200 of 1,200 jobs of import-7"
    assert done.record().tenant == "acme"
    status = batch.status()
    assert (status.total, status.waiting, status.completed, status.status) == (1_200, 1_200, 0, "running")
    headway.drain()
    assert done.result() == f"march {sum(range(1_200))}"
    assert ended.result() == "ended"
    assert failed.status() is State.CANCELLED
    assert list(batch.results()) == list(range(1_200))
    assert batch.status().ended
    assert list(batch.results().failures()) == []


def test_a_task_that_cannot_take_the_results_of_a_batch_is_refused(headway: Testbed, tasks: Tasks) -> None:
    app = headway.app

    def bare(parts, label=""): ...  # type: ignore[no-untyped-def]
    def listed(parts: list[int]) -> None: ...
    def unread(parts: "NoSuchName") -> None: ...  # type: ignore[name-defined]  # noqa: F821
    def nothing() -> None: ...

    with app.batch("rows") as batch:
        for number, function in enumerate((bare, listed, unread, nothing)):
            with pytest.raises(ConfigError, match="annotate its first parameter with headway"):
                batch.then(app.task(name=f"then-{number}")(function))  # type: ignore[call-overload]

        @app.task
        def raw(parts: dict[str, str]) -> dict[str, str]:
            return parts

        done = batch.then(raw)  # type: ignore[arg-type]
    headway.drain()
    assert done.result() == {"batch_id": batch.id}


def test_a_batch_is_retried_and_fires_again(headway: Testbed, tasks: Tasks) -> None:
    tasks.failing = {2}
    with headway.app.batch("rows") as batch:
        batch.add(tasks.row.call(number) for number in range(4))
        for verb in (batch.then, batch.on_failure, batch.on_done):
            with pytest.raises(ConfigError, match=rf"{verb.__name__} must be given a task, got <built-in"):
                verb(len)  # type: ignore[arg-type]
        done = batch.then(tasks.total, "sum")
        batch.on_failure(tasks.tell, "failed")
        batch.on_done(tasks.tell, "ended")
    headway.drain()
    assert sorted(tasks.ran, key=str) == [0, 1, 2, 3, "ended", "failed"]
    assert done.status() is State.CANCELLED
    (failure,) = batch.results().failures()
    assert (failure.state, failure.error.message if failure.error else "") == (State.DEAD_LETTER, "no 2")
    tasks.failing, tasks.ran = set(), []
    assert batch.retry("failed") == 1
    headway.drain()
    assert done.result() == "sum 6"
    assert tasks.ran[0] == 2
    assert sorted(tasks.ran[1:]) == ["ended", "total"]
    with pytest.raises(ConfigError, match="failed_and_after"):
        batch.retry("some")  # type: ignore[arg-type]


def test_a_large_batch_is_retried_in_small_steps(
    headway: Testbed, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    with headway.app.batch("many") as batch:
        batch.add(tasks.row.call(number) for number in range(2 * RETRIED + 7))
    batch.cancel()
    headway.drain()
    sizes: list[int] = []
    retry = MemoryStore.retry

    async def counted(self: MemoryStore, job_ids: Sequence[JobId], *, alone: bool = False) -> list[State | None]:
        sizes.append(len(job_ids))
        return await retry(self, job_ids, alone=alone)

    monkeypatch.setattr(MemoryStore, "retry", counted)
    assert batch.retry("all") == sum(sizes) == 2 * RETRIED + 7
    assert max(sizes) == RETRIED
    assert batch.status().waiting == 2 * RETRIED + 7


def test_retrying_all_includes_what_was_cancelled(headway: Testbed, tasks: Tasks) -> None:
    tasks.failing = {"x"}
    with headway.app.batch("pages") as batch:
        first = tasks.fetch.call("x")
        batch.add([first, first.then(tasks.parse)])
    headway.drain()
    status = batch.status()
    assert (status.failed, status.cancelled, status.status) == (1, 1, "failed")
    assert batch.retry("failed") == 1
    headway.drain()
    assert batch.status().cancelled == 1
    tasks.failing = set()
    assert batch.retry("failed_and_after") == 1
    headway.drain()
    assert batch.status().completed == 2


@pytest.mark.parametrize("ending", ["cancelled", "failed"])
def test_retrying_all_runs_chains_in_their_order(headway: Testbed, tasks: Tasks, ending: str) -> None:
    with headway.app.batch("pages") as batch:
        batch.add(tasks.fetch.call(url).then(tasks.parse).then(tasks.save, "t") for url in "xyz")
    if ending == "cancelled":
        batch.cancel()
    tasks.failing = {"x", "y", "z"}
    headway.drain()
    assert (batch.status().completed, batch.status().status) == (0, ending)
    tasks.failing, tasks.ran = set(), []
    assert batch.retry("all") == 9
    assert (batch.status().waiting, batch.status().held) == (3, 6)
    headway.drain()
    assert list(batch.results()) == ["<x>", [3, 5], 8, "<y>", [3, 5], 8, "<z>", [3, 5], 8]


def test_a_member_adds_to_its_own_batch(headway: Testbed) -> None:
    app = headway.app

    @app.task(name="crawl", context=True)
    def crawl(context: Context, depth: int) -> int:
        if depth:
            context.batch.add(crawl.call(depth - 1) for _ in range(2))
        return depth

    with app.batch("crawl") as batch:
        batch.add([crawl.call(3)])
    headway.drain()
    assert batch.status().total == 15
    assert sorted(batch.results()) == [0] * 8 + [1] * 4 + [2] * 2 + [3]
    with pytest.raises(BatchClosed):
        batch.add([crawl.call(0)])
    alone = crawl.enqueue(1)
    headway.drain(advance=True)
    with pytest.raises(JobFailed, match="belongs to no batch"):
        alone.result()


def test_an_empty_batch_fires_at_once(headway: Testbed, tasks: Tasks) -> None:
    with headway.app.batch("nothing") as batch:
        done = batch.then(tasks.total, "none")
    headway.drain()
    assert done.result() == "none 0"


def test_a_key_returns_the_same_batch(headway: Testbed, tasks: Tasks) -> None:
    with headway.app.batch("one", key="k") as one:
        one.add([tasks.row.call(1)])
        with headway.app.batch("two", key="k") as two:
            two.add([tasks.row.call(2)])
    assert one.id == two.id
    assert one.status().total == 2


def test_nested_batches_count_as_one_member(headway: Testbed, tasks: Tasks) -> None:
    with headway.app.batch("outer") as outer:
        outer.add([tasks.row.call(1)])
        with headway.app.batch("inner", parent=outer) as inner:
            inner.add([tasks.row.call(2), tasks.row.call(3)])
        done = outer.then(tasks.total, "outer")
    headway.drain()
    assert outer.status().completed == 2
    assert done.result() == "outer 1"
    assert list(inner.results()) == [2, 3]


def test_a_batch_whose_block_raises_is_cancelled(headway: Testbed, tasks: Tasks) -> None:
    with pytest.raises(RuntimeError), headway.app.batch("half") as batch:  # noqa: PT012
        batch.add([tasks.row.call(1)])
        raise RuntimeError("the list of rows broke off")
    headway.drain()
    assert tasks.ran == []
    assert batch.status().status == "cancelled"


def test_cancelling_a_batch_ends_it(headway: Testbed, tasks: Tasks) -> None:
    with headway.app.batch("rows") as batch:
        batch.add(tasks.row.call(number) for number in range(500))
        done = batch.then(tasks.total, "x")
    assert batch.cancel().status in ("running", "cancelled")
    headway.drain()
    assert tasks.ran == []
    assert batch.status().status == "cancelled"
    assert done.status() is State.CANCELLED
    (entry, *_) = [entry for entry in asyncio.run(_audit(headway.app)) if entry.what == "batch.cancel"]
    assert entry.target == batch.id


async def _audit(app: Headway) -> list[Any]:
    from headway.security.audit import read_audit

    return list(await read_audit(await app.client.store()))


def test_a_batch_that_does_not_exist_is_said_so(headway: Testbed) -> None:
    batch = headway.app.batch_of("batch-none")
    verbs: list[Callable[[], object]] = [batch.status, batch.cancel, batch.close, batch.retry]
    verbs += [lambda: list(batch.results()), lambda: list(batch.results().failures())]
    for verb in verbs:
        with pytest.raises(BatchNotFound):
            verb()
    with pytest.raises(ConfigError, match=r"with app\.batch"):
        _ = headway.app.batch("later").id
    with pytest.raises(ConfigError, match="1 to 255"):
        headway.app.batch("")


async def test_batches_work_on_a_loop(headway: Testbed, tasks: Tasks) -> None:
    async with headway.app.batch("rows") as batch:
        await batch.aadd(tasks.row.call(number) for number in range(3))
        done = await batch.athen(tasks.total, "sum")
    with pytest.raises(ResultTimeout):
        await batch.ajoin(timeout=0.01)
    waiting = asyncio.create_task(batch.ajoin(timeout=30))
    await headway.adrain()
    assert (await waiting).status == "completed"
    assert await done.aresult() == "sum 3"
    assert [result async for result in batch.results()] == [0, 1, 2]


# ---------------------------------------------------------------------- steps


@pytest.mark.parametrize("executor", ["thread", "async"])
def test_a_step_runs_once_and_is_skipped_by_the_next_attempt(headway: Testbed, executor: str) -> None:
    downloads: list[int] = []

    def download(number: int) -> dict[str, int]:
        downloads.append(number)
        return {"page": number}

    def order(context: Context, number: int) -> int:
        page = context.step("fetch", download, number)
        if context.attempt == 1:
            raise RuntimeError("after the first step")
        return context.step("count", lambda: page["page"] + 1)

    async def aorder(context: Context, number: int) -> int:
        page = await context.astep("fetch", download, number)
        if context.attempt == 1:
            raise RuntimeError("after the first step")
        return await context.astep("count", lambda: page["page"] + 1)

    task: Any = headway.app.task(name="order", context=True)(order if executor == "thread" else aorder)
    job = task.enqueue(5)
    headway.drain(advance=True)
    assert job.result() == 6
    assert downloads == [5]


def test_a_step_that_raises_is_not_kept(headway: Testbed) -> None:
    tries: list[int] = []

    def flaky() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("not now")

    @headway.app.task(name="order", context=True)
    def order(context: Context) -> None:
        context.step("flaky", flaky)

    job = order.enqueue()
    headway.drain(advance=True)
    assert job.result() is None
    assert len(tries) == 2


def test_wrong_steps_are_refused(headway: Testbed) -> None:
    problems: list[str] = []

    def expect(work: Any) -> None:
        with pytest.raises(StepError) as problem:
            work()
        problems.append(str(problem.value))

    @headway.app.task(name="order", context=True, max_retries=0)
    def order(context: Context) -> None:
        context.step("same", int)
        expect(lambda: context.step("same", int))
        expect(lambda: context.step("", int))
        expect(lambda: context.step("large", lambda: "x" * 70_000))
        with pytest.raises(PayloadError, match="the value of step 'odd' is a object, which is not a JSON value"):
            context.step("odd", object)

    @headway.app.task(name="aorder", context=True, max_retries=0)
    async def aorder(context: Context) -> None:
        expect(lambda: context.step("blocks", int))

    jobs = [order.enqueue(), aorder.enqueue()]
    headway.drain()
    assert [job.status() for job in jobs] == [State.COMPLETED] * 2
    assert [text.partition(";")[0][:40] for text in problems] == [
        "step 'same' is used twice in one run",
        "the name of a step must be text of 1 to ",
        "the value of step 'large' has 70,003 byt",
        "ctx.step would block the event loop",
    ]


def test_a_task_that_is_called_directly_keeps_steps_while_it_runs(headway: Testbed) -> None:
    @headway.app.task(name="order", context=True)
    def order(context: Context, number: int) -> int:
        return context.step("double", lambda: number * 2)

    assert order(4) == 8
