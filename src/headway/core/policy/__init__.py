"""Who runs next, and what becomes of a run: written once, pure."""
