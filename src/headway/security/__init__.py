"""Tokens, tickets, the audit log, and where a server may listen."""
