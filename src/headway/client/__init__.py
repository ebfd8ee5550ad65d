"""The interface for applications: the app, its tasks, and handles on jobs."""
