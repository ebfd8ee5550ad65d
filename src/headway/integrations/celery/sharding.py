"""The queues that a user hashes to: pure functions, the same on every machine and in every release."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b


@lru_cache(maxsize=4_096)
def shard_of(source: str, *, queues: int, width: int) -> tuple[int, ...]:
    """Return the numbers of ``width`` of all queues, ascending.

    The queues with the highest hash of source and number win. A changed number of queues therefore moves as few users
    as possible, and a narrower shard is part of a wider one.
    """
    if width >= queues:
        return tuple(range(queues))
    texts = [f"{index}\n{source}".encode(errors="surrogatepass") for index in range(queues)]
    hashes = [blake2b(text, digest_size=8).digest() for text in texts]
    ranked = sorted(range(queues), key=hashes.__getitem__, reverse=True)
    return tuple(sorted(ranked[:width]))


def queue_of(user: object, *, queues: int) -> int:
    """Return the number of the one queue that a user hashes to. Without a user it is 0."""
    if user is None or user == "":
        return 0
    return shard_of(str(user), queues=queues, width=1)[0]
