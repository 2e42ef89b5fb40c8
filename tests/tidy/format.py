"""clang-format (Debian 12's, 14) finds nothing to change, and has broken no comment."""

import os
import re
import shutil
import subprocess

import tree

PROGRAM = os.environ.get("AFD_CLANG_FORMAT", "clang-format")


# A comment's line: its indentation behind the slashes, its text.
COMMENT = re.compile(r"\s*///?( +)(\S.*)$")

# clang-format breaks a line that is too long and leaves its end alone on the next one, before a
# continuation that was indented by hand: it does not join what it broke.
LONG_LINE = 86
REST_WORDS = 4


def check(root):
    paths = tree.files(root, tree.CPP_SUFFIXES)
    if not paths:
        return []
    return broken_comments(root, paths) + badly_formatted(root, paths)


def broken_comments(root, paths):
    findings = []
    for path in paths:
        lines = (tree.read(root, path) or "").split("\n")
        for number in range(1, len(lines) - 1):
            before, line, after = (COMMENT.match(lines[number + step]) for step in (-1, 0, 1))
            if (before and line and after and len(lines[number - 1]) >= LONG_LINE
                    and len(line.group(2).split()) <= REST_WORDS and len(line.group(1)) < len(after.group(1))
                    and not line.group(2).endswith((".", ":"))):
                findings.append(tree.finding(path, number + 1, "clang-format broke this comment: wrap it by hand"))
    return findings


def badly_formatted(root, paths):
    if not shutil.which(PROGRAM):
        return [f"{PROGRAM} is missing: scripts/setup test installs it"]
    done = subprocess.run(
        [PROGRAM, "--dry-run", "--Werror", "--ferror-limit=1", "--style=file", *paths],
        cwd=root, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return []
    badly = sorted({line.split(":", 1)[0] for line in done.stderr.splitlines() if ": error:" in line})
    if not badly:
        return [done.stderr.strip()]
    return [tree.finding(path, 0, f"not formatted: clang-format -i {path}") for path in badly]
