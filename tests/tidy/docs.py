"""Documents hold together: every relative link leads somewhere, every page is in the index, and a page of docs/
that the sources name is there."""

import pathlib
import posixpath
import re
import urllib.parse

import tree

LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
CODE_FENCE = re.compile(r"^\s*(```|~~~)")
INDEX = "docs/README.md"
PAGE = re.compile(r"\bdocs/[\w./-]+\.md\b")

# The checks' own tests name pages that are not there; the others are data.
NOT_READ = ("tests/tidy/", "tests/data/", "tests/fuzz/corpus/", "models/")


def check(root):
    findings = []
    for path in tree.files(root, (".md",)):
        for number, target in links(tree.read(root, path) or ""):
            message = judge(root, path, target)
            if message:
                findings.append(tree.finding(path, number, message))
    return findings + unindexed(root) + named_in_sources(root)


def named_in_sources(root):
    findings = []
    for path in tree.files(root):
        if path.endswith(".md") or path.startswith(NOT_READ):
            continue
        for number, line in enumerate((tree.read(root, path) or "").split("\n"), 1):
            for page in PAGE.findall(line):
                if not pathlib.Path(root, page).exists():
                    findings.append(tree.finding(path, number, f"names {page}, which does not exist"))
    return findings


def links(text):
    in_code = False
    for number, line in enumerate(text.split("\n"), 1):
        if CODE_FENCE.match(line):
            in_code = not in_code
        elif not in_code:
            for target in LINK.findall(re.sub(r"`[^`]*`", "", line)):
                yield number, target


def judge(root, path, target):
    if re.match(r"[a-z]+:", target):
        return None  # words.py has the hosts.
    file_part, _, anchor = target.partition("#")
    file_part = urllib.parse.unquote(file_part)
    linked = posixpath.normpath(posixpath.join(posixpath.dirname(path), file_part)) if file_part else path
    if not pathlib.Path(root, linked).exists():
        return f"links to '{target}', but there is no {linked}"
    if anchor and linked.endswith(".md") and anchor not in anchors(tree.read(root, linked) or ""):
        return f"links to '{target}', but {linked} has no such heading"
    return None


def anchors(text):
    """Names of the headings, as web views of a repository make them."""
    found = set()
    in_code = False
    for line in text.split("\n"):
        if CODE_FENCE.match(line):
            in_code = not in_code
        match = re.match(r"#{1,6}\s+(.*?)\s*#*$", line)
        if match and not in_code:
            name = re.sub(r"[^\w\- ]", "", match.group(1).lower()).replace(" ", "-")
            count = 0
            while (unique := f"{name}-{count}" if count else name) in found:
                count += 1
            found.add(unique)
    return found


def unindexed(root):
    index = tree.read(root, INDEX) if pathlib.Path(root, INDEX).exists() else ""
    named = {posixpath.normpath(posixpath.join("docs", target.partition("#")[0])) for _, target in links(index)}
    return [
        tree.finding(path, 0, f"is not linked from {INDEX}")
        for path in tree.files(root, (".md",), under=("docs/",))
        if path != INDEX and path not in named
    ]
