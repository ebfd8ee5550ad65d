"""The dashboard: its built files, which ``make web`` puts into ``static/``, and the routes that serve them."""
