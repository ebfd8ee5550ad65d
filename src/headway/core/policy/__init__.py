"""The policy: which job runs next, and what happens after a run. Pure functions of plain values."""
