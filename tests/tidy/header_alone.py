"""Every header compiles on its own, with warnings as errors: whoever includes it needs nothing else."""

import concurrent.futures
import os
import shutil
import subprocess
import tempfile

import tree

FLAGS = ["-std=c++20", "-O0", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers",
         # What afd_test() defines for every test.
         '-DAFD_TEST_DATA="tests/data"', '-DAFD_MODELS="models"']

# Headers that only one back-end's machine can compile, with what they need.
NOT_HERE = {}


def check(root, compiler=None, includes=(), scratch=None):
    compiler = compiler or os.environ.get("CXX", "g++")
    # With ccache a header that did not change costs milliseconds instead of a second.
    launcher = [shutil.which("ccache")] if shutil.which("ccache") else []
    headers = tree.files(root, (".h",), under=("include/", "src/"))
    with tempfile.TemporaryDirectory(prefix="afd-header-alone-") as temporary:
        command = [*launcher, compiler, *FLAGS, f"-I{root}/include", f"-I{root}/src"]
        command += [f"-isystem{path}" for path in includes if path != "/usr/include"]  # It is there anyway.
        folder = scratch or temporary
        os.makedirs(folder, exist_ok=True)
        with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            results = pool.map(lambda header: compile_alone(header, command, folder), headers)
        return [finding for finding in results if finding]


def compile_alone(header, command, folder):
    if header in NOT_HERE:
        return None
    written = header.split("/", 1)[1]
    source = os.path.join(folder, header.replace("/", "_") + ".cc")
    with open(source, "w", encoding="utf-8") as file:
        file.write(f"#include <{written}>\n#include <{written}>\n")  # Twice: a missing guard shows.
    done = subprocess.run([*command, "-c", source, "-o", source + ".o"],
                          capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    return tree.finding(header, 0, "does not compile alone:\n" + done.stderr.rstrip())
