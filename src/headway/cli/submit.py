"""``headway submit``: make a job of a task."""

from __future__ import annotations

import json as json_module
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, cast

from cyclopts import Parameter

from headway.cli import render
from headway.cli.dry_run import preview_call, print_dry_run
from headway.cli.help import flag, option, split_names
from headway.cli.store_access import HERE, JsonFlag, TargetOptions, check_shared, run, watched_store
from headway.client.job_info import result_of
from headway.client.job_values import job_values
from headway.core.errors import BadArguments, ConfigError, NotStored, UnknownTask
from headway.core.job import JobId, JobRecord, State
from headway.core.suggest import did_you_mean
from headway.stores.open import open_store

if TYPE_CHECKING:
    from headway.client.app import Headway
    from headway.client.job import Job
    from headway.client.task import Call, Task

DEMO = "demo."
TEXT = {"type": "string"}
HTTP_NAMES = {"needs": "required_capabilities", "timeout": "timeout_seconds", "batch": "batch_id"}
NOT_TEXT = re.compile(r"argument '(\w+)': expected str\b")  # How a server refuses a number for a text.


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CallFlags:
    """The options of the submitted job."""

    priority: Annotated[str | None, option("The lane: high, medium or low.", "LANE", name=["--lane", "--priority"])] = (
        None
    )
    delay: Annotated[float | None, option("Run no earlier than this many seconds from now.", "SECONDS")] = None
    run_after: Annotated[str | None, option("Run no earlier than this moment: 2030-01-31T08:00:00Z.", "ISO")] = None
    expires: Annotated[
        float | None, option("Cancel the job if it has not started after this many seconds.", "SECONDS")
    ] = None
    idempotency_key: Annotated[str | None, option("A second submit with this key returns the same job.", "KEY")] = None
    tenant: Annotated[str | None, option("The tenant; slots are shared fairly between tenants.", "TENANT")] = None
    max_retries: Annotated[int | None, option("How often a failed attempt is repeated.", "N")] = None
    timeout: Annotated[float | None, option("The longest one attempt may take.", "SECONDS")] = None
    duration: Annotated[str | None, option("A rung of the ladder: fast, medium, slow or default.", "RUNG")] = None
    on_stop: Annotated[
        str | None, option("What to do if the rung's limit stops it: fail, retry_longer or partial.", "WHAT")
    ] = None
    needs: Annotated[str | None, option("Capabilities that a worker must offer, separated by commas.", "NAMES")] = None
    after: Annotated[list[str] | None, option("Wait for these jobs and batches: ids, separated by commas.", "IDS")] = (
        None
    )
    on_failure: Annotated[
        Literal["cancel", "run", "hold"] | None,
        option("What to do if one of them does not complete: cancel, run or hold.", "WHAT"),
    ] = None
    batch: Annotated[str | None, option("Become a member of this batch.", "ID")] = None

    def options(self) -> dict[str, Any]:
        """Return what was asked for, as ``Task.using`` takes it, and ``batch``."""
        given = asdict(self)
        if self.after is not None:
            given["after"] = split_names(self.after)
        elif self.on_failure is not None:
            raise ConfigError("--on-failure says what happens if a job of --after does not complete; add --after")
        if self.run_after is not None:
            given["run_after"] = _moment(self.run_after)
        if self.needs is not None:
            given["needs"] = split_names([self.needs])
        return {name: value for name, value in given.items() if value is not None}


NO_FLAGS = CallFlags()


def submit(
    task: Annotated[str, option("The task's name.", name="TASK")],
    /,
    *values: Annotated[str, option("Its arguments.", name="KEY=VALUE")],
    json_args: Annotated[str | None, option("Arguments as a JSON object; KEY=VALUE overrides it.", "JSON")] = None,
    call: CallFlags = NO_FLAGS,
    dry_run: Annotated[bool, flag("Check the job and show what would happen to it. Submit nothing.")] = False,
    wait: Annotated[bool, flag("Wait for the job to end and print its result.")] = False,
    timeout_wait: Annotated[float | None, option("Wait no longer than this.", "SECONDS")] = None,
    json: JsonFlag = False,
    place: TargetOptions = HERE,
) -> int:
    """Submit a job and print its id.

    A parameter that is text takes its value as it is written: month=2026. Other
    values are read as JSON where that is possible, else as text: seconds=2,
    flags='["a"]', name=Ada.

    With --app, or HEADWAY_APP, the task's own options apply. Without, or with
    --server, the task is looked up in the catalogue that workers keep in the
    store.

    With --wait the result is printed as well, as JSON, and the exit code is 1
    if the job does not complete.

    With --dry-run nothing is submitted. The command checks everything that a
    submit checks, and shows where the job would stand, when it would start,
    what it would wait for, and which limits apply to it.
    """
    given = Values.read(values, json_args)
    after = _ResultOptions(wait or timeout_wait is not None, timeout_wait, json, dry_run)
    if dry_run and after.wait:
        raise ConfigError("--dry-run submits nothing, so there is nothing to wait for; leave out --wait")
    if (server := place.server()) is not None:
        return run(_submit_to(*server, task, given, call.options(), place, after))
    return run(_submit(task, given, call.options(), place, after))


class _ResultOptions(NamedTuple):
    """The options for the time after the submit: whether and how long to wait, and how to print."""

    wait: bool
    timeout: float | None
    json: bool
    dry_run: bool


async def _submit(
    name: str, values: Values, options: dict[str, Any], place: TargetOptions, after: _ResultOptions
) -> int:
    from headway.client.app import Headway

    app = place.named_app()
    named = Headway(place.store, namespace=place.namespace) if app is None else app
    check_shared(named.make_store(), named.settings)
    async with named:
        if app is None:
            task, properties = await _look_up(named, name, place)
        else:
            task = app.find_task(name)
            properties = _properties(task)
    async with task.app as app:
        file = app.make_store().abilities.path
        if file is not None and not file.exists():
            app.in_force.fixed = True  # A store that is yet to be made has no policy of its own.
        batch = options.pop("batch", None)
        call = task.using(**options).call_named(values.fit(properties))
        if after.dry_run:
            # A dry run does not make a store either.
            store = None if file is None or file.exists() else open_store("memory://", app.settings.namespace)
            return print_dry_run(await preview_call(app, call, batch, store), json=after.json)
        if after.wait and not call.new.persist:
            raise NotStored(f"task {name} is transient, so its jobs keep no result; leave out --wait")
        job = await _stored(app, call, batch)
        if not after.json:
            _print_made(job.id, deduplicated=job.deduplicated)
        ended = await app.client.ended(job.id, after.timeout) if after.wait else None
    return _print_ended(job.id, ended, deduplicated=job.deduplicated, json=after.json)


async def _stored(app: Headway, call: Call[Any], batch: str | None) -> Job[Any]:
    """Submit a call, as a member of a batch if one is named."""
    if batch is None and not call.links:
        return call.handle((await app.submitter.submit([call]))[0])
    if batch is None:
        return await call.aenqueue()
    record = await app.batch_of(batch).arecord()
    return (await app.submitter.submit_graph([call], batch_id=record.batch_id, tenant=record.tenant))[0]


async def _submit_to(
    server: str,
    token: str | None,
    name: str,
    values: Values,
    options: dict[str, Any],
    place: TargetOptions,
    after: _ResultOptions,
) -> int:
    """Submit over the REST interface: a token with the scope ``submit`` is enough, unless the end is waited for."""
    from headway.cli.remote import HttpOperator
    from headway.client.client import Client

    kept: dict[str, Any] | None = None
    texts: dict[str, Any] = {}  # Only the server knows which parameters are text.
    operator = HttpOperator(server, token)
    try:
        while kept is None:
            try:
                kept = await operator.submit(_body(name, values.fit(texts), options), dry_run=after.dry_run)
            except BadArguments as problem:
                wrong = NOT_TEXT.search(str(problem))
                if wrong is None or wrong[1] not in values.texts or wrong[1] in texts:
                    raise
                texts[wrong[1]] = TEXT  # What was refused was not kept, so it can be sent again.
    finally:
        await operator.close()
    if after.dry_run:
        return print_dry_run(kept, json=after.json)
    job_id, deduplicated = JobId(kept["task_id"]), kept.get("deduplicated")
    if not after.json:
        _print_made(job_id, deduplicated=deduplicated)
    ended: JobRecord | None = None
    if after.wait:
        client = Client(lambda: watched_store(place))
        try:
            ended = await client.ended(job_id, after.timeout)
        finally:
            await client.close()
    return _print_ended(job_id, ended, deduplicated=deduplicated, json=after.json)


def _body(name: str, values: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Write a submission as the REST interface takes it."""
    body = {HTTP_NAMES.get(option, option): value for option, value in options.items() if option != "delay"}
    if (delay := options.get("delay")) is not None:
        later = datetime.now(UTC) + timedelta(seconds=delay)
        body["run_after"] = max(later, body.get("run_after", later))
    if "run_after" in body:
        body["run_after"] = body["run_after"].isoformat()
    return {"task_type": name, "parameters": values, **body}


def _properties(task: Task[Any, Any, Any]) -> dict[str, Any]:
    found: dict[str, Any] = task.signature.schema()["properties"]
    return found


async def _look_up(app: Headway, name: str, place: TargetOptions) -> tuple[Task[Any, Any, Any], dict[str, Any]]:
    """Find a task in the store's catalogue, or among the demo tasks. Return it with the schemas of its parameters."""
    from headway.client.remote_task import task_from_catalogue
    from headway.policy_store.catalogue import read_tasks

    file = app.make_store().abilities.path
    # Asking must not make an empty store where there is none.
    known = [] if file is not None and not file.exists() else await read_tasks(await app.client.store())
    for entry in known:
        if entry.name == name:
            return task_from_catalogue(app, entry), entry.parameters.get("properties", {})
    if name.startswith(DEMO):
        from headway.demo import app as demo

        demo.configure(store=place.store, namespace=place.namespace)
        task = demo.find_task(name)
        return task, _properties(task)
    names = [entry.name for entry in known]
    hint = did_you_mean(name, names) or "; start a worker that knows it, or name its app with --app or HEADWAY_APP"
    raise UnknownTask(f"no task {name!r} in the catalogue of the store{hint}")


class Values(NamedTuple):
    """The arguments of a submit: a JSON object, and over it texts that were written as ``key=value``."""

    given: dict[str, Any]
    texts: dict[str, str]

    @classmethod
    def read(cls, pairs: Iterable[str], json_args: str | None) -> Values:
        texts: dict[str, str] = {}
        for pair in pairs:
            name, equals, text = pair.partition("=")
            if not equals or not name:
                raise ConfigError(f"arguments are written key=value, not {pair!r}")
            if name in texts:
                raise ConfigError(f"the argument {name!r} is given twice; give it once")
            texts[name] = text
        return cls({} if json_args is None else _read_object(json_args), texts)

    def fit(self, properties: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by the JSON schemas of the task's parameters."""
        return self.given | fit_texts(self.texts, properties)


def fit_texts(texts: Mapping[str, str], properties: Mapping[str, Any]) -> dict[str, Any]:
    """Read each text by the schema of its parameter: as it is where text is wanted, else as JSON if it is JSON."""
    return {name: _fit(text, properties.get(name, {})) for name, text in texts.items()}


def _fit(text: str, schema: Mapping[str, Any]) -> Any:
    value = read_value(text)
    kinds = {one.get("type") for one in schema.get("anyOf", [schema])}
    if not kinds <= {"string", "null"} or isinstance(value, str) or (value is None and "null" in kinds):
        return value
    return text


def _read_object(text: str) -> dict[str, Any]:
    try:
        found = json_module.loads(text)
    except (ValueError, RecursionError) as problem:
        raise ConfigError(f"--json-args is not JSON: {problem}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"--json-args takes an object such as '{{\"seconds\": 2}}', not a {type(found).__name__}")
    return cast("dict[str, Any]", found)


def read_value(text: str) -> Any:
    """Read a value as JSON, or as the text it is."""
    try:
        return json_module.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"--run-after takes a moment as 2030-01-31T08:00:00Z, not {text!r}") from None
    if moment.tzinfo is None:
        raise ConfigError(f"--run-after {text} has no time zone; add Z or an offset as +02:00")
    return moment


def _print_made(job_id: str, *, deduplicated: bool | None) -> None:
    print(job_id)
    if deduplicated:
        print("an earlier submit made this job already", file=sys.stderr)
    sys.stdout.flush()


def _print_ended(job_id: str, ended: JobRecord | None, *, deduplicated: bool | None, json: bool) -> int:
    """Print how a job ended, if the command waited for that. Returns the exit code."""
    if json:
        made = {"id": job_id, "deduplicated": deduplicated}
        render.print_json(made if ended is None else made | job_values(ended))
    elif ended is not None:
        _print_ending(ended)
    return 0 if ended is None or _completed(ended) else 1


def _completed(job: JobRecord) -> bool:
    return job.state is State.COMPLETED and job.result_error is None


def _print_ending(job: JobRecord) -> None:
    if _completed(job):
        print(render.compact(result_of(job)))
        return
    what = job.result_error or (
        f"{job.error.type}: {job.error.message}" if job.error else job.reason or "no reason given"
    )
    after = f" after {render.plural(job.attempts, 'attempt')}" if job.attempts else ""
    print(render.clean(f"error: job {job.state.value}{after}: {what}"), file=sys.stderr)
