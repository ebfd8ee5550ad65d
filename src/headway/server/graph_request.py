"""Dependencies between the tasks of a request: ids, other tasks by index, and references to results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headway.client.links import Link, Reference, merge_links, read_links
from headway.client.task import Call
from headway.core.errors import BadEdge, BatchNotFound
from headway.core.job import JobId
from headway.core.workflow import BatchId, BatchRecord, EdgeRule, is_batch
from headway.server.auth import Principal
from headway.server.problems import Problem
from headway.server.schemas.rest import NewTask, TaskIndex
from headway.server.service import Service
from headway.stores.paging import get_in_steps

OUT = "$out"
_INDEX = "#"  # Before the index of a task in the request, until that task has an id. No id contains it.


def may_refer(body: bytes) -> bool:
    """Return whether the JSON of a request may contain a reference, so that its parameters must be searched."""
    return OUT.encode() in body or b"\\u" in body


def with_references(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters with references in the place of ``{"$out": …}``. Raises ``Problem``."""
    try:
        return {name: _replaced(value) for name, value in parameters.items()}
    except RecursionError:
        raise Problem("malformed", "the parameters nest too deeply") from None


def _replaced(value: Any) -> Any:
    if isinstance(value, list):
        return [_replaced(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {OUT}:
        match value[OUT]:
            case str(source) if source and _INDEX not in source:
                return Reference(source)
            case {"index": int(index), **others} if not others and not isinstance(index, bool):
                return Reference(f"{_INDEX}{index}")
    return {name: _replaced(item) for name, item in value.items()}


def link(call: Call[Any], new: NewTask) -> Call[Any]:
    """Return a call that waits for what its request names. ``on_failure`` holds for references too."""
    rule = new.on_failure or "cancel"
    sources = [f"{_INDEX}{one.index}" if isinstance(one, TaskIndex) else one for one in new.after or ()]
    links = merge_links(call.links, read_links(sources, rule))
    return call._replace(links=tuple(one._replace(rule=EdgeRule(rule)) for one in links)) if links else call


def resolve_indexes(calls: Sequence[Call[Any]]) -> list[Call[Any]]:
    """Return the calls of one request with ids in the place of indexes. Raises ``BadEdge``."""
    return [
        call._replace(links=tuple(_resolved(one, calls, place) for one in call.links)) if call.links else call
        for place, call in enumerate(calls)
    ]


def _resolved(one: Link, calls: Sequence[Call[Any]], place: int) -> Link:
    index = one.source_id.removeprefix(_INDEX)
    if index == one.source_id:
        return one
    if not 0 <= int(index) < len(calls):
        known = f"its {len(calls)} tasks have the indexes 0 to {len(calls) - 1}"
        raise BadEdge(f"task {place} waits for index {index} of the request, but {known}", index=place)
    return one._replace(source=calls[int(index)].new.job_id)


async def check_sources(service: Service, caller: Principal, calls: Sequence[Call[Any]]) -> None:
    """Raise ``BadEdge`` if a token of one tenant names a source that is not its tenant's.

    The text is the same whether the source exists or not, since a tenant learns nothing of other tenants.
    """
    if caller.tenant is None:
        return
    inner = {call.new.job_id for call in calls}
    named = {one.source_id for call in calls for one in call.links if one.source_id not in inner}
    own = await _own(service, caller, named)
    for place, call in enumerate(calls):
        for one in call.links:
            if one.source_id in named - own:
                raise BadEdge(f"task {place} waits for {one.source_id}, which does not exist", index=place)


async def _own(service: Service, caller: Principal, sources: set[str]) -> set[str]:
    store = await service.store()
    jobs = [JobId(source) for source in sources if not is_batch(source)]
    batches = await store.get_batches([BatchId(source) for source in sources if is_batch(source)])
    found = {job.job_id async for job in get_in_steps(store.get, jobs) if job and job.tenant == caller.tenant}
    return {*found, *(batch.batch_id for batch in batches if batch and batch.tenant == caller.tenant)}


async def find_batch(service: Service, caller: Principal, batch_id: str) -> BatchRecord:
    """Read a batch that the caller may see. Raises ``BatchNotFound``, also for a batch of another tenant."""
    (batch,) = await (await service.store()).get_batches([BatchId(batch_id)])
    if batch is None or caller.tenant not in (None, batch.tenant):
        raise BatchNotFound(f"no batch {batch_id}; it may have been removed since it ended", batch_id=batch_id)
    return batch


async def batch_of(service: Service, caller: Principal, requests: Sequence[NewTask]) -> BatchRecord | None:
    """Return the batch that the tasks of one request join, if any. Raises ``Problem``, ``BatchNotFound``."""
    named = {new.batch_id for new in requests}
    if len(named) > 1:
        raise Problem("invalid", "batch_id: the tasks of one request join the same batch, or none of them does")
    (batch_id,) = named
    return None if batch_id is None else await find_batch(service, caller, batch_id)
