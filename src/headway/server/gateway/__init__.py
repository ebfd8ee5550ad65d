"""The server's side of the HTTP worker protocol: registration, long polls, results, heartbeats, timeouts."""
