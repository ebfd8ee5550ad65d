"""Bounded upkeep that every worker does at a jittered interval, safe to do twice."""
