"""The store methods that SQLite and PostgreSQL share."""
