"""Where a worker gets its jobs: a store, or a server in front of one."""
