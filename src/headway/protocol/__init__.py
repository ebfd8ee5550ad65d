"""Messages and transport between processes: the worker protocol, sessions and the HTTP client."""
