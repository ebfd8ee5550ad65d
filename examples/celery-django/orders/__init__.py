"""Orders of customers."""
