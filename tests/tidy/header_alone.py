"""Every header compiles on its own, with warnings as errors: whoever includes it needs nothing else."""

import concurrent.futures
import os
import subprocess

import tree

FLAGS = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers"]

# Headers that only one back-end's machine can compile, with what they need.
NOT_HERE = {}


def check(root, compiler=None, includes=()):
    compiler = compiler or os.environ.get("CXX", "g++")
    headers = tree.files(root, (".h",), under=("include/", "src/"))
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        results = pool.map(lambda header: compile_alone(root, header, compiler, includes), headers)
    return [finding for finding in results if finding]


def compile_alone(root, header, compiler, includes):
    if header in NOT_HERE:
        return None
    written = header.split("/", 1)[1]
    source = f"#include <{written}>\n#include <{written}>\n"  # Twice: a missing guard shows.
    command = [compiler, *FLAGS, f"-I{root}/include", f"-I{root}/src"]
    command += [f"-isystem{path}" for path in includes if path != "/usr/include"]  # It is there anyway.
    command += ["-x", "c++", "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    return tree.finding(header, 0, "does not compile alone:\n" + done.stderr.rstrip())
