"""The protocol of interactive sessions: how a worker proves that it holds the job, and the messages.

Binary messages carry bytes unchanged. All other messages are JSON texts with a ``type``. A sender needs credit for its
data, so that both ends can read all the time and still bound what they buffer.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import msgspec

from headway.stores.base import Store

PATH = "/internal/sessions/"
PROOF = "X-Headway-Proof"
RESUME = "X-Headway-Resume"
WORKER, SERVER = "worker", "server"  # The worker of the job, and another server of its store.
MESSAGE_MAX = 64 << 10  # Bytes of one message, either way.
PIECE = 32 << 10  # Bytes of data in one message that we send, half of MESSAGE_MAX.
MESSAGE_CHARACTERS = 8 << 10  # Characters of text in one message that we send. JSON takes up to six bytes for each.
OUTPUT_MAX = 256 << 10  # Bytes that a task may send before its client has read them.
INPUT_MAX = 64 << 10  # Bytes that a client may send before its task has read them.
SIDE_MAX = 10_000  # Maximum rows or columns of a window.
KEYS, ADDRESS_KEY = "key", "session_address"  # The document with the key that addresses of servers are signed with.
KEY_BYTES = 32
ADDRESS_MAX = 300  # Characters of an address.


class Text(msgspec.Struct, tag_field="type", tag="text", frozen=True):
    """Text from one end to the other."""

    data: str


class Resize(msgspec.Struct, tag_field="type", tag="resize", frozen=True):
    """The client's window has another size."""

    rows: int
    columns: int

    def __post_init__(self) -> None:
        if not (0 < self.rows <= SIDE_MAX and 0 < self.columns <= SIDE_MAX):
            raise ValueError(f"rows and columns are between 1 and {SIDE_MAX}")


class Close(msgspec.Struct, tag_field="type", tag="close", frozen=True):
    """The client wants the session to end."""


class Credit(msgspec.Struct, tag_field="type", tag="credit", frozen=True):
    """This many more bytes may be sent."""

    bytes: int


read_from_client = msgspec.json.Decoder(Text | Resize | Close).decode
read_from_worker = msgspec.json.Decoder(Text | Credit).decode
read_from_server = msgspec.json.Decoder(Text | Resize | Credit).decode
_encode = msgspec.json.Encoder().encode


def write(message: msgspec.Struct) -> str:
    return _encode(message).decode()


class AddressRefused(ValueError):
    """The address was not signed by a server of this store."""


class AddressSigner:
    """Signs and checks the addresses at which servers wait for the workers of their sessions.

    The key is kept in the store, so only processes with the store can sign. ``opener`` None: this process has no
    store, and the server that handed it the job has checked the signature.
    """

    def __init__(self, opener: Callable[[], Awaitable[Store]] | None) -> None:
        self._opener = opener
        self._key = b""

    async def sign(self, address: str) -> str:
        if self._opener is None:
            raise AddressRefused("only a process with the store signs addresses")
        return f"{address} {_signature(address, await self._read_key(self._opener))}"

    async def check(self, signed: str) -> str:
        """Return the address that was signed. Raises ``AddressRefused``, and ``StoreError`` if there is no key yet."""
        address, _, signature = signed.partition(" ")
        if plain_address(address) != address:
            raise AddressRefused("an address has a scheme, a host and a port, and nothing else")
        if self._opener is not None and not self._is_signed(address, signature):
            self._key = b""  # A store that was emptied has a new key.
            await self._read_key(self._opener)
            if not self._is_signed(address, signature):
                raise AddressRefused("no server of this store has signed this address")
        return address

    def _is_signed(self, address: str, signature: str) -> bool:
        given, wanted = signature.encode("utf-8", "replace"), _signature(address, self._key).encode()
        return bool(self._key) and hmac.compare_digest(given, wanted)

    async def _read_key(self, opener: Callable[[], Awaitable[Store]]) -> bytes:
        """Return the key. The first process that needs it creates it."""
        store = await opener()
        while not self._key:
            for document in await store.read(KEYS, ADDRESS_KEY):
                self._key = document.body
            if not self._key:
                await store.write(KEYS, ADDRESS_KEY, secrets.token_bytes(KEY_BYTES), if_version=0)
        return self._key


def plain_address(address: str) -> str | None:
    """Return an address of http or https without anything behind host and port, or None if it is not one."""
    if len(address) > ADDRESS_MAX or not address.isascii() or not address.isprintable() or " " in address:
        return None
    try:
        parts = urlsplit(address)
        valid = parts.port is None or parts.port > 0
    except ValueError:
        return None
    if not valid or parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        return None
    bare = f"{parts.scheme}://{parts.netloc}"
    return bare if address in (bare, f"{bare}/") else None


def _signature(address: str, key: bytes) -> str:
    return hmac.new(key, f"headway server {address}".encode(), hashlib.sha256).hexdigest()


def proof_of(job_id: str, token: bytes, who: str = WORKER) -> str:
    """Return a proof that the sender knows the token of a job's lease, without the token itself."""
    return hmac.new(token, f"headway session {who} {job_id}".encode(), hashlib.sha256).hexdigest()


def is_proof(proof: str, job_id: str, token: bytes, who: str = WORKER) -> bool:
    """Return whether a proof shows that the sender knows the token."""
    return hmac.compare_digest(proof.encode("utf-8", "replace"), proof_of(job_id, token, who).encode())
