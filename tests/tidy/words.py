"""The project speaks of itself alone: no path of somebody's machine, no host it does not mean to name."""

import re

import tree

# Absolute paths that exist on one machine only. (Written with a class each, so that this file does not
# match itself.)
MACHINE_PATHS = re.compile(r"(?<![\w.])/([w]ork|[h]ome|[r]oot|[U]sers|[f]arm)/[\w.]")

# Web hosts that documents and comments may name; anything else is a registry, a mirror or a slip.
HOSTS = {
    "github.com", "huggingface.co", "www.apache.org", "apache.org", "arxiv.org", "en.cppreference.com",
    "keepachangelog.com", "semver.org", "json-schema.org", "docs.vllm.ai", "openucx.readthedocs.io",
    "example.com", "localhost", "127.0.0.1", "llvm.org", "gcc.gnu.org", "cmake.org", "www.gutenberg.org",
}
URL = re.compile(r"\b(?:https?|git|ssh|ftp)://(?:[^/@\s\"'<>]*@)?([A-Za-z0-9.\-\[\]]+)")

# Words of tools and processes around the project, not of the project.
OTHERS_WORDS = re.compile(
    r"\b(sub[a]gents?|[c]laude|[a]nthropic|(?:extra-)?index[-]url|issues (?:show|file)|farm-(?:[s]tudio|[b]ench))\b"
    r"|/\.librar[y]\b", re.IGNORECASE)

# Files of data, where a match is chance.
DATA_SUFFIXES = (".safetensors", ".bin", ".png")
DATA_FOLDERS = ("models/", "tests/data/", "tests/fuzz/corpus/")


def check(root):
    findings = []
    for path in tree.files(root):
        if path.endswith(DATA_SUFFIXES) or (path.startswith(DATA_FOLDERS) and not path.endswith(".md")):
            continue
        if path == "LICENSE":
            continue
        for number, line in enumerate((tree.read(root, path) or "").split("\n"), 1):
            for message in judge(line):
                findings.append(tree.finding(path, number, message))
    return findings


def judge(line):
    match = MACHINE_PATHS.search(line)
    if match:
        yield f"'{match.group(0)}...' is a path of one machine"
    for host in URL.findall(line):
        if host.lower() not in HOSTS and "$" not in host:
            yield f"host '{host}' is not among those that tests/tidy/words.py allows"
    match = OTHERS_WORDS.search(line)
    if match:
        yield f"'{match.group(0)}' is not a word of this project"
