"""Work that takes too long for a request."""

from __future__ import annotations

import time

from headway import Context
from headway.integrations.django import io_task


@io_task(context=True, dedupe=True)
def print_book(ctx: Context, title: str, pages: int) -> str:
    """Print a book, page by page. A second order of the same book is ignored until the first is printed."""
    for page in range(1, pages + 1):
        time.sleep(0.05)
        ctx.progress(page / pages, f"page {page} of {pages}")
    return f"{title}, {pages} pages"
