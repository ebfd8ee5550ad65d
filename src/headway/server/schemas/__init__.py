"""Request and reply schemas of the HTTP interface. The OpenAPI document is built from them."""
