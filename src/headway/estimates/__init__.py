"""Estimates of when a job will start: learned durations and arrivals, forecasts, and their measured accuracy."""
