"""Interactive sessions: admission, connections of workers, and the relay between server processes."""
