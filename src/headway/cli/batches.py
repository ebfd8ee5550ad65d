"""``headway batches`` and ``headway batch``: counted sets of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts.validators import Number

from headway.cli import render
from headway.cli.help import command, family, option
from headway.cli.jobs import Before, read_cursor
from headway.cli.operator import Operator
from headway.cli.store_access import HERE, PART_LEAST, JsonFlag, TargetOptions, ask, change
from headway.client.batch import RetryMode
from headway.core.errors import BatchNotFound, ConfigError
from headway.core.suggest import did_you_mean
from headway.core.timestamps import read_moment
from headway.core.workflow import BATCH_PREFIX, BatchId, BatchQuery

if TYPE_CHECKING:
    from rich.text import Text

COMPARED = 500  # The newest batches, which a part of an id is compared with.
STATUSES = ("open", "running", "completed", "failed", "cancelled")

ListLimit = Annotated[int, option("List at most this many.", "N", validator=Number(gte=1, lte=COMPARED))]
BatchWord = Annotated[str, option("The id of a batch, or its last characters.", name="ID")]


def batches(
    *,
    status: Annotated[list[str] | None, option("Only batches in these states, separated by commas.", "STATUS")] = None,
    tenant: Annotated[str | None, option("Only batches of this tenant.", "TENANT")] = None,
    limit: ListLimit = 50,
    before: Before = None,
    json: JsonFlag = False,
    place: TargetOptions = HERE,
) -> int:
    """List batches, newest first, with the counts of their jobs."""
    names = [name.strip() for part in status or () for name in part.split(",") if name.strip()]
    for name in names:
        if name not in STATUSES:
            raise ConfigError(f"no status {name!r}{did_you_mean(name, STATUSES)} (statuses: {', '.join(STATUSES)})")
    query = BatchQuery(tenant, tuple(names), read_cursor(before), limit)

    async def find(operator: Operator) -> tuple[dict[str, Any], int]:
        return await operator.batches(query), await operator.now_at()

    page, now_at = ask(place, find)
    if json:
        render.print_json(page)
    elif page["items"]:
        console = render.console()
        console.print(_table(page["items"], now_at))
        if page["next_cursor"] is not None:
            console.print(f"More with --before {page['next_cursor']}", style="dim")
    else:
        print("No batches.")
    return 0


batch = family(
    "batch",
    "Show, cancel or retry one batch of jobs.",
    "headway batch show 22334455",
    "headway batch retry 22334455 --mode all",
)


@command(batch, "show ID [OPTIONS]", "headway batch show 22334455 --json")
def show(batch_id: BatchWord, /, *, json: JsonFlag = False, place: TargetOptions = HERE) -> int:
    """Show one batch: its state, the counts of its jobs, and when it is expected to end."""

    async def read(operator: Operator) -> tuple[dict[str, Any], int]:
        return await _find(operator, batch_id), await operator.now_at()

    found, now_at = ask(place, read)
    if json:
        render.print_json(found)
    else:
        render.console().print(render.facts(_facts(found, now_at)))
    return 0


@command(batch, "cancel ID [OPTIONS]", "headway batch cancel 22334455")
def cancel(batch_id: BatchWord, /, *, json: JsonFlag = False, place: TargetOptions = HERE) -> int:
    """Cancel a batch and the batches in it.

    None of its jobs starts any more, and running jobs are asked to stop. Exits
    with 1 if the batch has ended otherwise.
    """

    async def move(operator: Operator) -> tuple[dict[str, Any], bool]:
        before = await _find(operator, batch_id)
        after = await operator.cancel_batch(BatchId(before["batch_id"]))
        return after or before, before["finished_at"] is None

    found, was_live = change(place, move)
    if json:
        render.print_json(found)
    elif was_live:
        print(f"{found['batch_id']}  {_cancelled(found)}")
    else:
        print(f"{found['batch_id']}  {found['status']} already; it cannot be cancelled")
    return 0 if was_live else 1


@command(batch, "retry ID [OPTIONS]", "headway batch retry 22334455", "headway batch retry 22334455 --mode all")
def retry(
    batch_id: BatchWord,
    /,
    *,
    mode: Annotated[
        RetryMode,
        option("failed alone, failed_and_after: also those cancelled because of them, or all.", "MODE"),
    ] = "failed_and_after",
    json: JsonFlag = False,
    place: TargetOptions = HERE,
) -> int:
    """Retry the jobs of a batch that did not complete.

    If the batch had ended, its next round begins, and jobs that wait for the
    batch wait for it again. Exits with 1 if there was nothing to retry.
    """

    async def move(operator: Operator) -> tuple[str, int]:
        whole = (await _find(operator, batch_id))["batch_id"]
        return whole, await operator.retry_batch(BatchId(whole), mode)

    whole, retried = change(place, move)
    if json:
        render.print_json({"batch_id": whole, "retried": retried})
    else:
        what = f"{render.plural(retried, 'job')} queued again" if retried else "no job to retry"
        print(f"{whole}  {what}")
    return 0 if retried else 1


async def _find(operator: Operator, word: str) -> dict[str, Any]:
    """Read the batch that a word stands for: an id, or its beginning or end. Raises ``BatchNotFound``."""
    found = await operator.batch(BatchId(word))
    if found is not None:
        return found
    part = word.lower()
    known = (await operator.batches(BatchQuery(limit=COMPARED)))["items"] if len(part) >= PART_LEAST else []
    fitting: list[dict[str, Any]] = [
        values
        for values in known
        if values["batch_id"].endswith(part) or values["batch_id"].removeprefix(BATCH_PREFIX).startswith(part)
    ]
    if len(fitting) > 1:
        shown = ", ".join(values["batch_id"] for values in fitting[:10])
        raise ConfigError(f"{word!r} is the beginning or end of {len(fitting)} ids; give more of it: {shown}")
    if not fitting:
        raise BatchNotFound.of(word)
    return fitting[0]


def _cancelled(found: dict[str, Any]) -> str:
    live = sum(found["counts"][name] for name in ("held", "waiting", "running"))
    return "cancelled" if not live else f"cancelled; {render.plural(live, 'job')} of it still to end"


def _facts(found: dict[str, Any], now_at: int) -> dict[str, object]:
    facts: dict[str, object | None] = {
        "batch": found["batch_id"],
        "name": found["name"],
        "key": found["key"],
        "tenant": found["tenant"],
        "status": render.status_text(found["status"]),
        "jobs": ", ".join(f"{count:,} {name}" for name, count in found["counts"].items() if count or name == "total"),
        "round": found["round"] if found["round"] > 1 else None,
        "created": render.moment(read_moment(found["created_at"]), now_at),
        "ends": _ends(found) if found["finished_at"] is None else None,
        "finished": found["finished_at"] and render.moment(read_moment(found["finished_at"]), now_at),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _ends(found: dict[str, Any]) -> str | None:
    seconds = found["ends_in_seconds"]
    return None if seconds is None else f"in about {render.duration(seconds * 1_000)}, by its pace so far"


def _table(items: Sequence[dict[str, Any]], now_at: int) -> render.FittedTable:
    short = render.short_ids(one["batch_id"] for one in items)
    rows: list[dict[str, str | Text]] = []
    for one in items:
        counts = one["counts"]
        live = counts["held"] + counts["waiting"] + counts["running"]
        rows.append(
            {
                "id": render.text(one["batch_id"]),
                "id:short": render.text(short[one["batch_id"]]),
                "name": render.text(one["name"]),
                "status": render.status_text(one["status"]),
                "jobs": f"{counts['total']:,}",
                "live": f"{live:,}",
                "completed": f"{counts['completed']:,}",
                "failed": f"{counts['failed']:,}",
                "cancelled": f"{counts['cancelled']:,}",
                "age": render.age(read_moment(one["created_at"]), now_at),
            }
        )
    numbers = ("jobs", "live", "completed", "failed", "cancelled", "age")
    return render.FittedTable(
        rows,
        ("id", "name", "status", *numbers),
        ("id:short", "name", "status", *numbers),
        ("id:short", "name", "status", "jobs", "live", "failed", "age"),
        ("id:short", "name", "status", "jobs", "live"),
        ("id:short", "name", "status"),
        kept="name",
        right=numbers,
    )
