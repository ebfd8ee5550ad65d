"""Which releases of the server lack known fixes to the part that runs functions."""

from __future__ import annotations

Version = tuple[int, ...]

# The first release of each branch with the fixes of CVE-2024-46981, CVE-2025-46817 and CVE-2025-49844. Without them the
# author of a function can leave the sandbox and run code on the server. Older branches got no fixes.
FIXED: dict[str, tuple[Version, ...]] = {
    "redis": ((6, 2, 20), (7, 2, 11), (7, 4, 6), (8, 0, 4), (8, 2, 2)),
    "valkey": ((7, 2, 11), (8, 0, 6), (8, 1, 4)),
}


def lacks_fixes(server: str, version: str) -> str | None:
    """Return the oldest safe release of a server's branch if it is older; None if it is safe or not known."""
    known = FIXED.get(server)
    try:
        number = tuple(int(part) for part in version.split("."))
    except ValueError:
        return None
    if known is None or number >= known[-1]:
        return None
    for fixed in known:
        if number[:2] == fixed[:2]:
            return None if number >= fixed else _text(fixed)
    return _text(next(fixed for fixed in known if fixed > number))


def _text(version: Version) -> str:
    return ".".join(map(str, version))
