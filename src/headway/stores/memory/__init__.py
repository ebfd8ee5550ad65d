"""The reference store: core and dictionaries."""

from headway.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
