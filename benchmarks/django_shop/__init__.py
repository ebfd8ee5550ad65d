"""A small Django project to measure: a model, a task, and settings for the measured database."""
