"""The source of a worker's jobs: a store, or a server in front of one."""
