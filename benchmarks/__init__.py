"""Measurements of Headway. A benchmark, never a test: machines are noisy, so ratios count."""
