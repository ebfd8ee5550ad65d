"""Processes, signals, bounded waits and failpoints: what workers and servers need of the operating system."""
