"""Stores keep jobs; they do not decide. ``base`` says what a store is."""
