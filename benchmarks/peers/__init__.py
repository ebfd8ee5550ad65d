"""The task queues that Headway is compared with, one file each. They run in an environment of their own."""
