"""What the stores on SQL databases share: the verbs, written once for SQLite and PostgreSQL."""
