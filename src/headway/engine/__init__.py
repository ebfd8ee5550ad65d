"""Between stores and their users: feeding workers, watching jobs, the catalogue."""
