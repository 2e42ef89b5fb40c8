"""The files that the checks look at, and how a finding is written."""

import os
import pathlib

# Folders that hold no source of this project.
SKIPPED_FOLDERS = {".git", "build", "__pycache__", ".cache", ".venv", "node_modules"}

CPP_SUFFIXES = (".h", ".cc", ".cu", ".inc")


# Sources that are no part of the product: tests, benchmarks and what they share.
TEST_SUFFIXES = ("_test.cc", "_bench.cc", "_testing.h", "_testing.cc", "_test_support.h", "_test_support.cc")


def is_test(path):
    return path.endswith(TEST_SUFFIXES) or path.rpartition("/")[2].startswith("test_")


def files(root, suffixes=None, under=()):
    """Relative paths of the tree's files in a stable order.

    suffixes: only names that end so. under: only below these folders (given with "/").
    """
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(
            name
            for name in folders
            if name not in SKIPPED_FOLDERS
            and not name.startswith("build")
            and not os.path.exists(os.path.join(folder, name, "CMakeCache.txt"))
        )
        for name in sorted(names):
            path = pathlib.PurePosixPath(os.path.relpath(os.path.join(folder, name), root))
            if suffixes and not name.endswith(tuple(suffixes)):
                continue
            if under and not str(path).startswith(tuple(under)):
                continue
            found.append(str(path))
    return found


def read(root, path):
    """The file's text, or None where it is not text."""
    data = pathlib.Path(root, path).read_bytes()
    if b"\0" in data[:8192]:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def finding(path, line, message):
    """`path:line: message`, which editors and terminals turn into a link."""
    return f"{path}:{line}: {message}" if line else f"{path}: {message}"
