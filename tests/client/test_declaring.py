"""Declaring tasks and crons: names, options, and mistakes that are refused before any job exists."""

import functools
from typing import Any

import pytest

from headway import Depends, Headway, Limit, Retry, Task, Unique
from headway.core.errors import BadCron, ConfigError, UnknownOption
from headway.testing import Testbed


def module_level() -> None: ...


def test_a_task_is_named_after_its_module_and_function(headway: Testbed) -> None:
    # R2.11
    task = headway.app.task(module_level)
    assert task.name == f"{__name__}.module_level"
    assert headway.app.tasks == {task.name: task}
    named = headway.app.task(name="other")(module_level)
    assert named.name == "other"


def test_a_task_looks_like_its_function(headway: Testbed) -> None:
    @headway.app.task
    def work(a: int) -> int:
        """Do it."""
        return a

    assert work.__doc__ == "Do it."
    assert work.__name__ == "work"
    assert work.fn(3) == 3
    assert not isinstance(work.fn, Task)


# R2.4
def test_two_functions_cannot_have_one_name(headway: Testbed) -> None:
    @headway.app.task(name="work")
    def one() -> None: ...

    with pytest.raises(ConfigError, match=r"two functions want the task name 'work': .*test_declaring.py:\d+ and "):

        @headway.app.task(name="work")
        def other() -> None: ...

    assert headway.app.tasks["work"] is one


def test_a_function_may_be_declared_again_when_its_module_is_loaded_again(headway: Testbed) -> None:
    def declare() -> Task[Any, Any, Any]:
        @headway.app.task(name="work")
        def work() -> None: ...

        return work

    declare()
    again = declare()
    assert headway.app.tasks["work"] is again


@pytest.mark.parametrize(
    "options, message",
    [
        ({"priority": "urgent"}, r"no lane 'urgent' in the policy .*lanes: high, medium, low"),
        ({"priority": "hi"}, "did you mean 'high'"),
        ({"priority": 5}, "priority must be the name of a lane, got 5"),
        ({"duration": 30}, "duration must be the name of a rung, got 30"),
        ({"retry": "exponential"}, "retry must be a Retry, got 'exponential'"),
        ({"unique": True}, "unique must be a Unique, got True"),
        ({"limits": Limit(concurrency=1)}, "limits must be a list of Limit, got Limit"),
        ({"limits": ["10/s"]}, "limits must be a list of Limit, got '10/s' in it"),
        ({"executor": "greenlet"}, "executor is auto, async, thread, process, not 'greenlet'"),
        ({"executor": "async"}, "'async' needs an async def"),
        ({"fair_by": "acount"}, "fair_by names 'acount'.*did you mean 'account'"),
        ({"unique": Unique(by=["acount"])}, "unique names 'acount'.*did you mean 'account'"),
        ({"max_retries": -1}, "max_retries must be a whole number"),
        ({"timeout": -1}, "timeout must be above 0"),
        ({"timeout": "1 min"}, "timeout must be a number of seconds"),
        ({"needs": "gpu"}, "needs is a set of names"),
        ({"on_stop": "explode"}, "on_stop is fail, retry_longer or partial"),
        ({"persist": False, "unique": Unique()}, "unique cannot go with persist=False"),
        ({"persist": False, "limits": [Limit(concurrency=1)]}, "limits cannot go with persist=False"),
        ({"persist": False, "fair_by": "account"}, "fair_by cannot go with persist=False"),
        ({"duration": "slwo"}, "no duration 'slwo'.*did you mean 'slow'"),
        ({"limits": [Limit(concurrency=1, by="acount")]}, "a limit names 'acount'.*did you mean 'account'"),
        ({"limits": [Limit(concurrency=1), Limit(concurrency=2)]}, "two limits of the same kind"),
    ],
    ids=lambda value: repr(value) if isinstance(value, dict) else "",
)
def test_an_option_that_makes_no_sense_is_an_error_where_it_is_written(
    headway: Testbed, options: dict[str, Any], message: str
) -> None:
    def work(account: int) -> None: ...

    with pytest.raises(ConfigError, match=message):
        headway.app.task(**options)(work)
    assert headway.app.tasks == {}


@pytest.mark.parametrize(
    "options, message",
    [
        ({"priority": 5}, "priority must be the name of a lane, got 5"),
        ({"duration": 30}, "duration must be the name of a rung, got 30"),
        ({"unique": True}, "unique must be a Unique, got True"),
        ({"needs": 5}, "needs is a set of names, not 5"),
    ],
)
def test_an_option_of_a_call_has_the_type_of_the_task_option(
    headway: Testbed, options: dict[str, Any], message: str
) -> None:
    @headway.app.task
    def work() -> None: ...

    with pytest.raises(ConfigError, match=message):
        work.using(**options)


def test_an_async_function_does_not_run_in_threads(headway: Testbed) -> None:
    async def work() -> None: ...

    with pytest.raises(ConfigError, match="'thread' needs a plain def"):
        headway.app.task(executor="thread")(work)


def test_an_unknown_option_of_a_task_suggests_the_nearest(headway: Testbed) -> None:
    declare: Any = headway.app.task
    with pytest.raises(UnknownOption, match="no option 'max_retry'; did you mean 'max_retries'"):
        declare(max_retry=3)


@pytest.mark.parametrize(
    "option",
    [
        {"delay": 5},
        {"idempotency_key": "k"},
        {"expires": 5},
        {"tenant": "acme"},
        {"unique": Unique()},
    ],
    ids=lambda option: next(iter(option)),
)
def test_what_needs_a_store_cannot_be_asked_of_a_transient_job(headway: Testbed, option: dict[str, Any]) -> None:
    @headway.app.task(persist=False)
    def notify() -> None: ...

    with pytest.raises(ConfigError, match="cannot go with persist=False"):
        notify.using(**option)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Retry(backoff="random"), "backoff is exponential, linear, fixed, not 'random'"),
        (lambda: Retry(base=-1), "must not be negative"),
        (lambda: Retry(cap="1 min"), "cap must be a number of seconds"),  # type: ignore[arg-type]
        (lambda: Retry(jitter=1.5), "jitter is between 0 and 1"),
        (lambda: Retry(jitter=float("nan")), "jitter is between 0 and 1"),
        (lambda: Retry(on=5), "on must be a tuple of exception classes, got 5"),  # type: ignore[arg-type]
        (lambda: Retry(jitter="0.5"), "jitter is between 0 and 1"),  # type: ignore[arg-type]
        (lambda: Unique(by="account"), "by must be a list of parameters, got 'account'"),
        (lambda: Unique(by=5), "by must be a list of parameters, got 5"),  # type: ignore[arg-type]
        (lambda: Retry(on=(5,)), "on must be a tuple of exception classes, got 5"),  # type: ignore[arg-type]
        (lambda: Retry(give_up_on=("ValueError",)), "give_up_on must be a tuple of exception classes"),  # type: ignore[arg-type]
        (lambda: Depends(5), "Depends needs a function, not 5"),
    ],
)
def test_options_are_checked_when_they_are_made(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_exceptions_to_retry_on_may_be_one_class_or_a_list() -> None:
    one: Any = ValueError
    several: Any = [KeyError, IndexError]
    assert Retry(on=one, give_up_on=several) == Retry(on=(ValueError,), give_up_on=(KeyError, IndexError))


@pytest.mark.parametrize("wrong", [5, None, "work"])
def test_only_a_function_becomes_a_task(headway: Testbed, wrong: Any) -> None:
    with pytest.raises(ConfigError, match="a task is a function"):
        headway.app.task()(wrong)


def test_generators_are_no_tasks(headway: Testbed) -> None:
    def plain() -> Any:
        yield 1

    async def waiting() -> Any:
        yield 1

    for function in (plain, waiting):
        with pytest.raises(ConfigError, match="is a generator; a task returns one result"):
            headway.app.task(function)


def test_a_task_is_not_made_a_task_again(headway: Testbed) -> None:
    task = headway.app.task(module_level)
    with pytest.raises(ConfigError, match="is a task already"):
        headway.app.task(task)


def test_a_callable_without_a_name_must_be_given_one(headway: Testbed) -> None:
    two: Any = functools.partial(pow, 2)
    with pytest.raises(ConfigError, match="no name of its own"):
        headway.app.task(two)

    def power(base: int, exponent: int) -> int:
        return int(base**exponent)

    task: Task[Any, Any, Any] = headway.app.task(name="two to the")(functools.partial(power, 2))
    job = task.enqueue(exponent=10)
    headway.drain(raise_errors=True)
    assert job.result() == 1_024


def test_context_needs_a_parameter_to_arrive_in(headway: Testbed) -> None:
    with pytest.raises(ConfigError.__base__ or Exception, match="takes no parameter for it"):
        headway.app.task(context=True)(module_level)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- crons


@pytest.mark.parametrize("expression", ["", "* * * *", "61 * * * *", "nonsense", "* * * * * * * *", "0 0 30 2"])
def test_a_cron_that_cannot_be_read_is_refused(headway: Testbed, expression: str) -> None:
    with pytest.raises(BadCron):
        headway.app.cron(expression)


def test_a_cron_in_no_known_zone_is_refused(headway: Testbed) -> None:
    with pytest.raises(BadCron):
        headway.app.cron("* * * * *", tz="Europe/Atlantis")


@pytest.mark.parametrize("options", [{"catch_up": "some"}, {"overlap": "maybe"}])
def test_a_cron_option_has_few_values(headway: Testbed, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(options))} is "):
        headway.app.cron("* * * * *", **options)


def test_a_cron_task_needs_no_arguments(headway: Testbed) -> None:
    with pytest.raises(ConfigError, match="callable without arguments"):

        @headway.app.cron("* * * * *")
        def work(number: int) -> None: ...

    with pytest.raises(ConfigError, match="cannot be transient"):

        @headway.app.cron("* * * * *", persist=False)
        def notify() -> None: ...


def test_a_cron_is_a_task_that_can_be_enqueued_by_hand_too(headway: Testbed) -> None:
    @headway.app.cron("*/5 * * * *", tz="Europe/Paris", priority="low")
    def sweep(deep: bool = False) -> bool:
        return deep

    @headway.app.cron("0 3 * * *")
    @headway.app.task(name="nightly")
    def nightly() -> None: ...

    assert set(headway.app.crons) == {sweep.name, "nightly"}
    job = sweep.enqueue(deep=True)
    headway.drain()
    assert job.result() is True
    assert job.record().lane == "low"


def test_signals_have_names(headway: Testbed) -> None:
    with pytest.raises(ConfigError, match="signals are start, finish, fail, not 'end'"):
        headway.app.on("end")


def test_apps_do_not_share_their_tasks() -> None:
    one, other = Headway("memory://"), Headway("memory://")
    one.task(module_level)
    assert other.tasks == {}
