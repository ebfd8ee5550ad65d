"""Bounded chores that keep a store in order. Any number of processes may run them at once."""
