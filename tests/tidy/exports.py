"""libafd.so exports what AFD_EXPORT marks in include/afd, all of it and nothing else."""

import pathlib
import re
import subprocess

import tree

CLASS = re.compile(r"\b(?:class|struct)\s+AFD_EXPORT\s+(\w+)")
FUNCTION = re.compile(r"^AFD_EXPORT\s+[^;{]*?\b(\w+)\(", re.MULTILINE)


def check(root, library):
    classes, functions = marked(root)
    symbols = exported(library)
    findings = []
    seen = set()
    for symbol in symbols:
        name = public_name(symbol)
        if name in classes or name in functions:
            seen.add(name)
        else:
            findings.append(f"{library} exports '{symbol}', which AFD_EXPORT marks in no public header")
    for name in sorted(functions - seen):
        findings.append(f"{library} does not export afd::{name}, though a public header marks it AFD_EXPORT")
    return findings


def marked(root):
    classes, functions = set(), set()
    for path in tree.files(root, (".h",), under=("include/",)):
        text = re.sub(r"//[^\n]*", "", tree.read(root, path) or "")
        text = re.sub(r"^\s*#(?:[^\n]*\\\n)*[^\n]*", "", text, flags=re.MULTILINE)
        classes.update(CLASS.findall(text))
        functions.update(FUNCTION.findall(text))
    return classes, functions


def exported(library):
    pathlib.Path(library).stat()
    done = subprocess.run(["nm", "-D", "--defined-only", "-C", library],
                          capture_output=True, text=True, check=True)
    lines = (line.split(" ", 2) for line in done.stdout.splitlines())
    # Versions of the symbol versioning are absolute symbols.
    return [fields[2].partition("@@")[0] for fields in lines if len(fields) == 3 and fields[1] != "A"]


def public_name(symbol):
    """`afd::X::f(int)`, `vtable for afd::X` -> X; `afd::f(int)` -> f; None for what is not ours."""
    symbol = re.sub(r"^(vtable|typeinfo|typeinfo name|VTT|construction vtable) for ", "", symbol)
    symbol = re.sub(r"^(non-)?virtual thunk to ", "", symbol)
    match = re.match(r"(?:\S+ )*?afd::(\w+)", symbol.split("(")[0].split("<")[0])
    return match.group(1) if match else None
