"""Check that commit messages have an imperative subject and a body.

`python scripts/commit_message.py FILE` checks one message, as the commit-msg hook does. Without a file it checks the
history since BASE.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BASE = "105b222abba14c9cb783d58d4b67a4c77ade1f1e"  # Commits up to this one were written before the rules.

MOST = 72  # Characters; git and review pages cut longer subjects.
NO_ORDER = re.compile(
    r"(a|after|all|an|and|as|at|because|before|both|by|each|every|for|from|if|in|it|its|no|not|of|on|once|one|only|over|so"
    r"|some|that|the|there|these|they|this|those|to|two|under|until|what|when|where|which|while|who|with|without"
    r"|(?!(bring|embed|exceed|feed|need|ping|proceed|seed|shed|speed|spring|string)\b)\w+(ed|ing))",
    re.IGNORECASE,
)


def problems(message: str) -> list[str]:
    """Return the problems of a message, without the comment lines that git adds to it."""
    written = message.partition("\n# ------------------------ >8")[0]  # `git commit -v` shows the diff below it.
    subject, *rest = [line for line in written.strip().splitlines() if not line.startswith("#")] or [""]
    word = subject.partition(" ")[0]
    found = []
    if len(subject) > MOST:
        found.append(f"the subject has {len(subject)} characters, at most {MOST} are allowed")
    if not re.match(r"[A-Z]", subject):
        found.append("the subject must begin with a capital letter")
    if subject.endswith("."):
        found.append("the subject must not end with a full stop")
    if NO_ORDER.fullmatch(word):
        found.append(f"the subject must begin with an imperative such as Add or Fix, not {word!r}")
    if rest and rest[0].strip():
        found.append("a blank line must follow the subject")
    if not any(line.strip() for line in rest[1:]):
        found.append("the body is missing: say what was wrong, what changed and why")
    return found


def git(*arguments: str, folder: Path = ROOT) -> str | None:
    """Return the output of git, or None if it fails because there is no repository or no such commit."""
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def messages(folder: Path = ROOT, base: str = BASE) -> Iterator[tuple[str, str]]:
    """Yield hash and message of each commit after `base` that is no merge.

    A shallow clone that ends before `base` has newer commits only, so all of them count. A whole history without it is
    another project's, and none of its commits count.
    """
    if git("merge-base", "--is-ancestor", base, "HEAD", folder=folder) is not None:
        commits = f"{base}..HEAD"
    elif (git("rev-parse", "--is-shallow-repository", folder=folder) or "").strip() == "true":
        commits = "HEAD"
    else:
        return
    log = git("log", "--no-merges", "--format=%h%x00%B%x00%x00", commits, folder=folder) or ""
    for entry in log.split("\0\0\n"):
        name, _, message = entry.partition("\0")
        if message:
            yield name, message


def main(files: list[str]) -> int:
    """Print the problems of a message or of the history, and return the exit code."""
    found = [(file, Path(file).read_text(encoding="utf-8")) for file in files] or list(messages())
    wrong = [f"{name}: {problem}" for name, message in found for problem in problems(message)]
    print("\n".join(wrong), end="\n" if wrong else "", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
