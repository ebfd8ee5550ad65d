"""Headway inside other frameworks, in their words."""
