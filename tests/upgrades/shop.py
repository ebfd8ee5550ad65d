"""The app of the jobs in the stores of earlier releases. Its tasks keep their names and arguments for good."""

from __future__ import annotations

from pathlib import Path

from headway import Context, Headway, Limit, Results

app = Headway()


@app.task(name="shop.add")
def add(a: int, b: int) -> int:
    return a + b


@app.task(name="shop.double", priority="low")
def double(value: int) -> int:
    return 2 * value


@app.task(name="shop.total", priority="high")
def total(parts: Results[int], label: str) -> str:
    return f"{label}: {sum(parts)}"


@app.task(name="shop.refuse", max_retries=0)
def refuse(why: str) -> None:
    raise ValueError(why)


@app.task(name="shop.charge", limits=[Limit(concurrency=1, by="account")], fair_by="account")
def charge(account: str, cents: int) -> str:
    return f"{account} paid {cents}"


@app.task(name="shop.pack", context=True)
def pack(ctx: Context, order: int) -> list[str]:
    """Return the worker that packed the order. Tests append lines to a file to count runs."""
    with Path("packed").open("a") as packed:
        packed.write(f"{order}\n")
    return [f"order {order}", f"attempt {ctx.attempt}"]
