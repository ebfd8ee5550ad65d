"""Interactive sessions: admission, the worker's way in, and the relay between server processes."""
