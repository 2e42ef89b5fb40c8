"""Rules that a line of C++ can break on its own."""

import re

import tree

CODE = ("src/", "include/")
CONNECTOR = r'(?:"\w*AFDConnector"|\bk\w*Connector\b)'

# (name, pattern, where it holds, files that may, what to do instead)
RULES = [
    (
        # A literal or a constant. One file is excepted: the reference's configuration has two rules by
        # name (async mode, strict topology), whose messages are golden, and config.cc keeps them.
        "connector name compared",
        re.compile(rf"(==|!=)\s*{CONNECTOR}|{CONNECTOR}\s*(==|!=)"
                   rf"|\b(compare|starts_with|ends_with|find|contains)\(\s*{CONNECTOR}"),
        CODE, ("src/builtin/", "src/core/config.cc"),
        "ask capabilities() instead of comparing a connector's name",
    ),
    (
        "connector named",
        re.compile(r'"\w+AFDConnector"'),
        tuple(f"src/{folder}/" for folder in ("base", "session", "transport", "model", "runtime", "cli")), (),
        "names stand in src/builtin (default_connector.h) and in the connector's own folder",
    ),
    (
        "environment read",
        re.compile(r"\b(secure_)?getenv\s*\(|\benviron\b"),
        CODE, ("src/cli/",),
        "the environment is read in src/cli only; take the value as an argument",
    ),
    (
        "exception thrown",
        re.compile(r"\bthrow\b(?!\(\))"),
        CODE, (),
        "return Result<T>: nothing throws across our headers",
    ),
    (
        "std::function on the fast path",
        re.compile(r"\bstd::function\b"),
        ("src/transport/",), (),
        "a function pointer and an argument (see RowSink) cost no allocation",
    ),
    (
        "abort as error handling",
        re.compile(r"(?<![\w:])(std::|::)(abort|terminate|exit|quick_exit)\s*\(|(?<![\w.>:])abort\(\)"),
        CODE, ("src/base/check", "src/cli/", "src/runtime/launcher"),
        "AFD_CHECK is for our own bugs, Result<T> for the rest",
    ),
    (
        "fast-math",
        re.compile(r"-ffast-math|-Ofast|-funsafe-math|FP_CONTRACT\s+ON|-ffp-contract=fast"),
        ("src/", "include/", "cmake/", "CMakeLists.txt", "CMakePresets.json"), (),
        "results are bitwise equal in every layout: the compiler may not reorder arithmetic",
    ),
    (
        "left-over mark",
        re.compile(r"(?://|#).*?(?:\b(?:FIXME|XXX|HACK)\b|\bTODO\b(?!\(\d+\)))"),
        ("src/", "include/", "tests/", "benchmarks/", "examples/"), ("tests/tidy/",),
        "TODO(issue number), or do it",
    ),
]

SUFFIXES = (*tree.CPP_SUFFIXES, ".txt", ".cmake", ".json", ".py")


def check(root):
    findings = []
    for path in tree.files(root, SUFFIXES):
        if path.startswith(("models/", "tests/data/")):
            continue
        rules = [rule for rule in RULES if path.startswith(rule[2]) and not path.startswith(tuple(rule[3]))]
        if not rules:
            continue
        is_test = tree.is_test(path)
        for number, line in enumerate(without_comments(tree.read(root, path) or "", path), 1):
            for name, pattern, _, _, instead in rules:
                if is_test and name not in ("left-over mark", "fast-math"):
                    continue
                match = pattern.search(line)
                if match:
                    findings.append(tree.finding(path, number, f"{name}: '{match.group(0).strip()}'; {instead}"))
    return findings + unlisted_sources(root)


def without_comments(text, path):
    """The lines, with C++ comments blanked (the mark rule looks into them, so they stay for TODO)."""
    if not path.endswith(tree.CPP_SUFFIXES):
        return text.split("\n")
    lines = []
    for line in text.split("\n"):
        code, slashes, comment = line.partition("//")
        if slashes and code.count('"') % 2 == 0:
            marks = re.search(r"\b(FIXME|XXX|HACK|TODO)\b(\(\d+\))?", comment)
            lines.append(code + (f"// {marks.group(0)}" if marks else ""))
        else:
            lines.append(line)
    return lines


def unlisted_sources(root):
    """A source that no CMakeLists.txt names is never built: a test in it never runs."""
    lists = {}
    for path in tree.files(root, ("CMakeLists.txt",)):
        lists[path.rpartition("/")[0]] = tree.read(root, path) or ""
    findings = []
    for path in tree.files(root, (".cc", ".cu"), under=("src/", "tests/", "benchmarks/", "examples/")):
        folder, _, name = path.rpartition("/")
        while folder not in lists and folder:
            folder = folder.rpartition("/")[0]
        relative = path[len(folder):].lstrip("/")
        if not names_source(lists.get(folder, ""), path, relative):
            findings.append(tree.finding(path, 0, f"is not named in {folder}/CMakeLists.txt: nothing builds it"))
    return findings


def names_source(text, path, relative):
    """Whether the list names the source: as it is, behind a variable's folder, or as ${name}_test.cc of a loop."""
    for word in re.findall(r"[^\s\"();<>]+\.(?:cc|cu)\b", text):
        if word == relative or word.endswith("/" + path):
            return True
        if "${" in word:
            pattern = re.sub(r"\\\$\\\{\w+\\\}", r"([\\w/]+)", re.escape(word))
            match = re.fullmatch(pattern, relative)
            if match and all(re.search(rf"(?<![\w/]){re.escape(part)}(?!\w)", text) for part in match.groups()):
                return True
    return False
