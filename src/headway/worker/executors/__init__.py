"""How a job's function is run: on the loop, in a thread, or in a process that can be killed."""
