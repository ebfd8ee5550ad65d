"""The verdicts on edges, as pure rules."""

import pytest

from headway.core.workflow import EdgeVerdict, SourceStatus, waits_again

LIVE = (SourceStatus.LIVE, EdgeVerdict.WAIT)
FAILING = (SourceStatus.LIVE, EdgeVerdict.SATISFY)  # A live batch, to a callback at its first failure.
COMPLETED = (SourceStatus.COMPLETED, EdgeVerdict.SATISFY)
FAILED = (SourceStatus.FAILED, EdgeVerdict.CANCEL)
ON_HOLD = (SourceStatus.FAILED, EdgeVerdict.WAIT)


@pytest.mark.parametrize(
    "edges, waits",
    [
        ([], False),
        ([LIVE], True),
        ([COMPLETED], False),
        ([FAILED], False),
        ([ON_HOLD], False),
        ([FAILING], False),
        ([COMPLETED, LIVE], True),
        ([ON_HOLD, LIVE], True),
        ([LIVE, FAILED], False),
    ],
)
def test_a_retried_job_waits_for_a_live_source_unless_another_one_would_cancel_it(
    edges: list[tuple[SourceStatus, EdgeVerdict]], waits: bool
) -> None:
    assert waits_again(edges) is waits
