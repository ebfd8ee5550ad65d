"""Two stores as one: a store for durable jobs and a store for transient jobs."""
