"""Programs as jobs: what they are given, within which limits they run, what comes out of them."""
