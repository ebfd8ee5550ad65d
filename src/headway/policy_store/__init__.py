"""The policy, its rules and the catalogue of tasks, kept as documents in a store."""
