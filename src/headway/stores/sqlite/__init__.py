"""The embedded store: one file, no service."""
