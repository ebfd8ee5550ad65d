"""What a session's two ends agree on: how a worker proves that it holds the job, and the words on the line.

Bytes go as they are, in binary messages; all else is JSON in text messages, with a ``type``. Whoever sends data needs
credit for it: both ends read all the time, so that neither is taken for dead, and still neither keeps more than that.
"""

from __future__ import annotations

import hashlib
import hmac

import msgspec

PATH = "/internal/sessions/"
PROOF = "X-Headway-Proof"
RESUME = "X-Headway-Resume"
WORKER, SERVER = "worker", "server"  # Who may dial: whoever runs the job, and another process that serves its store.
MESSAGE_MAX = 64 << 10  # Bytes of one message, either way.
PIECE = 32 << 10  # Bytes of data that we put into one of them,
LETTERS = 8 << 10  # and letters of text: six bytes each at worst.
OUTPUT_MAX = 256 << 10  # What a task may say before its client has read it,
INPUT_MAX = 64 << 10  # and a client before the task has.
SIDE_MAX = 10_000  # Rows or columns.


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
    """So many bytes more may be sent."""

    bytes: int


read_from_client = msgspec.json.Decoder(Text | Resize | Close).decode
read_from_worker = msgspec.json.Decoder(Text | Credit).decode
read_from_server = msgspec.json.Decoder(Text | Resize | Credit).decode
_encode = msgspec.json.Encoder().encode


def write(message: msgspec.Struct) -> str:
    """Write a message as JSON."""
    return _encode(message).decode()


def proof_of(job_id: str, token: bytes, who: str = WORKER) -> str:
    """Prove that one knows the token of a job's lease, without giving it away."""
    return hmac.new(token, f"headway session {who} {job_id}".encode(), hashlib.sha256).hexdigest()


def is_proof(proof: str, job_id: str, token: bytes, who: str = WORKER) -> bool:
    """Tell whether this proves that somebody knows the token."""
    return hmac.compare_digest(proof.encode("utf-8", "replace"), proof_of(job_id, token, who).encode())
