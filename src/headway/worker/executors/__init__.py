"""Executors of job functions: on the loop, in a thread, or in a process that can be killed."""
