"""A file over 800 lines says at its top why it is one file."""

import tree

LINES_MAX = 800
SUFFIXES = (*tree.CPP_SUFFIXES, ".py", ".cmake", ".md", ".txt", ".sh")

# What the sentence begins with, within the first 20 lines: "Long because the table of ... is one."
MARKER = "long because "


def check(root):
    findings = []
    for path in tree.files(root, SUFFIXES):
        if path.startswith(("models/", "tests/data/", "tests/fuzz/corpus/")):
            continue
        lines = (tree.read(root, path) or "").split("\n")
        if len(lines) - 1 > LINES_MAX and MARKER not in "\n".join(lines[:20]).lower():
            findings.append(tree.finding(
                path, 0, f"has {len(lines) - 1} lines, more than {LINES_MAX}: split it, or say at its top "
                f"'Long because ...'"))
    return findings
