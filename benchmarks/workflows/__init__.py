"""Cost of workflows: graphs and batches beside plain jobs, and beside the peers that have them."""
