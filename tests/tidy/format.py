"""clang-format (Debian 12's, 14) finds nothing to change."""

import os
import shutil
import subprocess

import tree

PROGRAM = os.environ.get("AFD_CLANG_FORMAT", "clang-format")


def check(root):
    paths = tree.files(root, tree.CPP_SUFFIXES)
    if not paths:
        return []
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
