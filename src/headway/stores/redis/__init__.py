"""Jobs on a Redis or Valkey server."""
