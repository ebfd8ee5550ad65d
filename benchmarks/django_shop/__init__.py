"""A small Django project to measure: a model, a task, and settings that name whatever database is measured."""
