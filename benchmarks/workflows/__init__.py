"""What workflows cost: graphs and batches beside plain jobs, and beside the peers that have them."""
