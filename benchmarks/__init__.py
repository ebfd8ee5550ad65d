"""Measurements of Headway. They are not tests: machines differ, so compare only the ratios within one run."""
