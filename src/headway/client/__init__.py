"""What applications touch: the app, its tasks, and handles on jobs."""
