"""The what-if simulator: replays jobs through the real policy on a virtual clock."""
