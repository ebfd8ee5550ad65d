"""The pure part of Headway: values, the table of legal moves, policies. No I/O, no clock, no randomness."""
