"""Programs as jobs: their arguments and input files, their limits, and their output."""
