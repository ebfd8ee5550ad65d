"""Two stores as one: durable jobs in the one, transient jobs in the other."""
