"""Who may include whom (docs/architecture.md has the table in prose)."""

import re

import tree

# Folder of src/ -> folders of src/ that it may include, itself among them. A folder that is not
# named here is a finding: whoever adds one says where it stands.
ALLOWED = {
    "base": {"base"},
    "core": {"base", "core"},
    "session": {"base", "core", "session"},
    "transport": {"base", "core", "session", "transport"},
    "connectors": {"base", "core", "session", "transport", "connectors"},
    "model": {"base", "core", "model"},
    "runtime": {"base", "core", "session", "model", "runtime"},
    "builtin": {"base", "core", "session", "transport", "connectors", "builtin"},
    "cli": {"base", "core", "session", "transport", "connectors", "model", "runtime", "builtin", "cli"},
}

# Folders whose subfolders are each other's rivals: a subfolder includes itself, what lies directly in
# the folder, and the subfolders that are named here because several back-ends stand on them.
SIBLINGS_APART = {"transport": {"mapped"}, "connectors": set()}

# Third-party header -> folders that may include it, and whether a header of theirs may. Kept out of
# our headers, so that a change of library is a change of one folder and compile times stay short.
THIRD_PARTY = [
    (r"tl/expected\.hpp", {"include"}, True),
    (r"asio(\.hpp|/.*)", {"session"}, False),
    (r"CLI/.*", {"cli"}, False),
    (r"nlohmann/.*", {"core", "session", "connectors", "model", "runtime", "cli", "base"}, False),
    (r"(spdlog|fmt)/.*", {"base", "core", "session", "transport", "connectors", "model", "runtime", "cli"}, False),
    (r"openssl/.*", {"base", "core", "session", "model", "runtime"}, False),
    (r"pcre2\.h", {"model"}, False),
    (r"(cblas|openblas.*|dnnl|oneapi/.*)(\.h|\.hpp)?", {"model"}, False),
    (r"(ucp|ucs|uct)/.*", {"transport"}, False),
    (r"(nccl|cuda|cuda_runtime|cuda_runtime_api)\.h", {"transport", "connectors"}, False),
    (r"torch/.*|ATen/.*|c10/.*", set(), False),
]

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def check(root):
    findings = []
    for path in tree.files(root, tree.CPP_SUFFIXES, under=("src/", "include/", "examples/")):
        text = tree.read(root, path)
        for number, line in enumerate((text or "").split("\n"), 1):
            match = INCLUDE.match(line)
            if match:
                message = judge(path, match.group(1) == "<", match.group(2))
                if message:
                    findings.append(tree.finding(path, number, message))
    return findings


def judge(path, angled, target):
    """What is wrong with one include, or None."""
    parts = path.split("/")
    folder = parts[1] if parts[0] == "src" else parts[0]
    is_header = path.endswith(".h")
    is_test = tree.is_test(path)

    if angled and target.startswith("afd/"):
        return None
    if angled:
        return third_party(folder, is_header, is_test, target)
    if folder == "include":
        return f'a public header includes <afd/...> only, not "{target}"'
    if folder == "examples":
        return None if "/" not in target else f'an example uses public headers only, not "{target}"'
    if folder not in ALLOWED:
        return f"src/{folder} is not in the table of tests/tidy/include_rules.py; add it there"
    target_parts = target.split("/")
    if len(target_parts) < 2:
        return f'"{target}" is written from src/: "{"/".join(parts[1:-1])}/{target}"'
    target_folder = target_parts[0]
    if target_folder == "tests" and is_test:
        return None
    if target_folder not in ALLOWED[folder]:
        allowed = ", ".join(sorted(ALLOWED[folder]))
        return f'src/{folder} may not include "{target}": it may use {allowed}'
    if (
        not is_test
        and target_folder in SIBLINGS_APART
        and folder == target_folder
        and len(target_parts) > 2
        and len(parts) > 3
        and target_parts[1] not in {parts[2], *SIBLINGS_APART[folder]}
    ):
        return (
            f'{folder}/{parts[2]} may not include {folder}/{target_parts[1]}: what both need '
            f"belongs into src/{folder}/ or below"
        )
    return None


def third_party(folder, is_header, is_test, target):
    for pattern, folders, in_headers in THIRD_PARTY:
        if not re.fullmatch(pattern, target):
            continue
        if folder not in folders and not is_test:
            where = ", ".join(sorted(folders)) or "no folder"
            return f"<{target}> may be included in {where} only"
        if is_header and not in_headers and not is_test:
            return f"<{target}> is kept out of headers: include it in the .cc file"
        return None
    if re.fullmatch(r"(gtest|gmock|benchmark)/.*", target) and not is_test:
        return f"<{target}> belongs into tests: *_test.cc, *_bench.cc, *_testing.h"
    return None
