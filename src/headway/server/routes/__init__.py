"""One file for each family of routes; each parses, calls one verb and shapes the answer."""
