#!/usr/bin/env python3
"""Each check finds what it is there to find: planted in a tree of its own, and absent from a clean one."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]

CLEAN = {
    "src/base/fd.h": "#pragma once\n#include <string>\ninline int fd_of(const std::string&) {\n  return 1;\n}\n",
    "src/base/CMakeLists.txt": "afd_library(base SOURCES fd.cc)\n",
    "src/base/fd.cc": '#include "base/fd.h"\n',
    "include/afd/x.h": "#pragma once\n",
    "docs/README.md": "# Docs\n\n[one](decisions/0001-one.md), [self](#docs), [list](../README.md)\n",
    "docs/decisions/0001-one.md": "# One\n",
    "README.md": "# Title\n\n[docs](docs/README.md#docs) <https://github.com/x/y>\n",
    ".clang-format": (REPOSITORY / ".clang-format").read_text(encoding="utf-8"),
}

LONG = "\n".join(["int x;"] * 900)

# Check -> name of the case -> (files to plant, text that the finding has to contain).
PLANTED = {
    "include_rules": {
        "a folder includes one above it": (
            {"src/base/fd.cc": '#include "session/session.h"\n'}, 'may not include "session/session.h"'),
        "a connector includes another": (
            {"src/connectors/p2p/a.cc": '#include "connectors/cam/b.h"\n'},
            "connectors/p2p may not include connectors/cam"),
        "a transport includes another": (
            {"src/transport/shm/a.cc": '#include "transport/inproc/b.h"\n'},
            "transport/shm may not include transport/inproc"),
        "the runtime includes a back-end": (
            {"src/runtime/a.cc": '#include "connectors/p2p/b.h"\n'}, "src/runtime may not include"),
        "an include is written relative": ({"src/base/fd.cc": '#include "fd.h"\n'}, "is written from src/"),
        "a public header includes a private one": (
            {"include/afd/x.h": '#include "base/fd.h"\n'}, "a public header includes <afd/...> only"),
        "a public header includes a library": (
            {"include/afd/x.h": "#include <nlohmann/json.hpp>\n"}, "<nlohmann/json.hpp> may be included in"),
        "a header includes a heavy library": (
            {"src/core/a.h": "#include <nlohmann/json.hpp>\n"}, "kept out of headers"),
        "sockets outside the session": (
            {"src/core/a.cc": "#include <asio.hpp>\n"}, "<asio.hpp> may be included in session only"),
        "an example looks inside": (
            {"examples/e/a.cc": '#include "base/fd.h"\n'}, "an example uses public headers only"),
        "test macros in the product": (
            {"src/base/fd.cc": "#include <gtest/gtest.h>\n"}, "<gtest/gtest.h> belongs into"),
        "a folder without a place": ({"src/new/a.cc": '#include "base/fd.h"\n'}, "src/new is not in the table"),
    },
    "source_rules": {
        "a name compared": (
            {"src/core/a.h": 'bool b = name == "P2pShmAFDConnector";\n'}, "connector name compared"),
        "a name's constant compared": (
            {"src/core/a.cc": "bool b = name == kAsyncConnector;\n"}, "connector name compared"),
        "a name searched": (
            {"include/afd/a.h": "bool b = names.contains(kStrictConnector);\n"}, "connector name compared"),
        "a name written down": (
            {"src/cli/a.h": 'std::string connector = "P2pShmAFDConnector";\n'}, "connector named"),
        "the environment read": ({"src/core/a.h": 'auto* v = std::getenv("AFD_X");\n'}, "environment read"),
        "an exception": ({"include/afd/x.h": "inline void f() { throw 1; }\n"}, "exception thrown"),
        "std::function in a transport": (
            {"src/transport/a.h": "std::function<void()> f;\n"}, "std::function on the fast path"),
        "abort": ({"src/core/a.h": "inline void f() { std::abort(); }\n"}, "abort as error handling"),
        "fast-math": ({"src/base/CMakeLists.txt": "fd.cc -ffast-math\n"}, "fast-math"),
        "a mark without an issue": ({"src/base/fd.h": "// TODO: later\n"}, "left-over mark"),
        "a source that nothing builds": (
            {"src/base/lost.cc": "int x;\n"}, "src/base/lost.cc: is not named in src/base/CMakeLists.txt"),
        "a source that a loop leaves out": (
            {"tests/x/CMakeLists.txt": "foreach(name one two)\n  add(SOURCES ${name}_test.cc)\n",
             "tests/x/three_test.cc": "int x;\n"}, "tests/x/three_test.cc: is not named"),
        "a name that only ends alike": (
            {"src/base/d.cc": "int x;\n"}, "src/base/d.cc: is not named in src/base/CMakeLists.txt"),
    },
    "header_alone": {
        "a missing include": (
            {"src/base/fd.h": "#pragma once\nstd::string f();\n"}, "src/base/fd.h: does not compile alone"),
        "a missing guard": ({"src/base/fd.h": "struct X {};\n"}, "src/base/fd.h: does not compile alone"),
        "a warning": (
            {"include/afd/x.h": "#pragma once\ninline int f(int unused) { return 1; }\n"},
            "include/afd/x.h: does not compile alone"),
    },
    "format": {
        "spaces": ({"src/base/fd.cc": "int  x ;\n"}, "src/base/fd.cc: not formatted"),
        "a broken comment": (
            {"src/base/fd.cc": "// @return what " + "w" * 75 + ",\n// or\n//         more\n"},
            "src/base/fd.cc:2: clang-format broke this comment"),
    },
    "words": {
        "a machine's path": ({"docs/README.md": "see /" + "work/main\n"}, "is a path of one machine"),
        "a home": ({"README.md": "cd /" + "home/me/afd\n"}, "is a path of one machine"),
        "a host": ({"README.md": "https:" + "//mirror.internal.net/simple\n"}, "host 'mirror."),
        "a host behind a user": ({"README.md": "https:" + "//me:pw@mirror.internal.net/\n"}, "host 'mirror."),
        "a tool's word": ({"src/base/fd.cc": "// by a sub" + "agent\n"}, "is not a word of this project"),
    },
    "docs": {
        "a link to nothing": ({"README.md": "[x](docs/none.md)\n"}, "there is no docs/none.md"),
        "a link to no heading": ({"README.md": "[x](docs/README.md#none)\n"}, "has no such heading"),
        "a page that the program names": (
            {"src/cli/x.cc": "// see docs/gone.md\n", "src/cli/CMakeLists.txt": "x.cc"},
            "src/cli/x.cc:1: names docs/gone.md, which does not exist"),
        "a decision outside the index": (
            {"docs/decisions/0002-two.md": "# Two\n"}, "0002-two.md: is not linked from docs/README.md"),
    },
    "file_size": {
        "a long file": ({"src/base/fd.cc": LONG}, "src/base/fd.cc: has 899 lines"),
    },
}

# Trees that a check must let pass.
INNOCENT = {
    "file_size": {"src/base/fd.cc": "// Long because the table is one.\n" + LONG},
    "source_rules": {
        "src/cli/main.cc": 'auto* v = std::getenv("AFD_X");\n',
        "src/cli/CMakeLists.txt": "main.cc",
        "tests/x/CMakeLists.txt": "foreach(name one two)\n  add(SOURCES ${name}_test.cc)\n",
        "tests/x/one_test.cc": 'auto x = "XXX";\n',
        "src/core/a.h": "// a rule may throw or abort() in a comment\n// TODO(12): later\n",
    },
    "include_rules": {
        "src/connectors/p2p/a.cc": '#include "connectors/p2p/b.h"\n#include "connectors/common.h"\n',
        "src/transport/shm/a.cc": '#include "transport/mapped/b.h"\n',
        "src/base/fd_test.cc": "#include <gtest/gtest.h>\n",
    },
    "docs": {"README.md": "```\n[x](none.md)\n```\n`[y](none.md)`\n"},
}


def run_check(check, files, *options):
    with tempfile.TemporaryDirectory(prefix="afd-tidy-") as root:
        for path, text in {**CLEAN, **files}.items():
            target = pathlib.Path(root, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(HERE / "tidy.py"), check, "--root", root, *options],
            capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr


class TidyTest(unittest.TestCase):
    def test_every_check_has_a_planted_violation(self):
        text = (HERE / "tidy.py").read_text(encoding="utf-8")
        names = [line.split('"')[1] for line in text.split("CHECKS = {")[1].split("}")[0].splitlines() if '"' in line]
        self.assertEqual(sorted(names), sorted([*PLANTED, "exports"]))

    def test_finds_what_was_planted(self):
        for check, cases in PLANTED.items():
            for name, (files, wanted) in cases.items():
                with self.subTest(check=check, case=name):
                    status, output = run_check(check, files)
                    self.assertEqual(status, 1, output)
                    self.assertIn(wanted, output)

    def test_passes_a_clean_tree(self):
        for check in PLANTED:
            for files in ({}, INNOCENT.get(check, {})):
                with self.subTest(check=check, files=sorted(files)):
                    status, output = run_check(check, files)
                    self.assertEqual(status, 0, output)

    def test_exports(self):
        header = (
            "#pragma once\n#define AFD_EXPORT\n"
            "namespace afd {\nclass AFD_EXPORT C {\n public:\n  void f();\n};\nAFD_EXPORT int g(int x);\n}\n")
        good = "namespace afd { struct C { void f(); }; void C::f() {} int g(int x) { return x; } }\n"
        cases = {
            good: (0, "0 findings"),
            good + "namespace afd { int hidden() { return 1; } }\n": (1, "exports 'afd::hidden()'"),
            good + "int stray() { return 1; }\n": (1, "exports 'stray()'"),
            good.replace("int g(int x) { return x; }", ""): (1, "does not export afd::g"),
        }
        for source, (wanted_status, wanted) in cases.items():
            with self.subTest(source=source), tempfile.TemporaryDirectory(prefix="afd-tidy-") as folder:
                library = str(pathlib.Path(folder, "lib.so"))
                subprocess.run(["g++", "-shared", "-fPIC", "-x", "c++", "-o", library, "-"],
                               input=source, text=True, check=True)
                status, output = run_check("exports", {"include/afd/x.h": header}, "--library", library)
                self.assertEqual(status, wanted_status, output)
                self.assertIn(wanted, output)


if __name__ == "__main__":
    unittest.main()
