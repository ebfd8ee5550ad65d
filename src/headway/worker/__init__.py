"""Workers: a small parent that keeps the leases, and runners that claim and run."""
