"""The version of this release. It is written here and nowhere else."""

__version__ = "0.1.0"
