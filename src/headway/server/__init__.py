"""The service: the REST interface, streams and the protocol of workers that speak HTTP."""
