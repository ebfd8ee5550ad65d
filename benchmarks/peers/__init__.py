"""The task queues that Headway is measured beside, one file each, run from an environment of their own."""
