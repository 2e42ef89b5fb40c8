#!/usr/bin/env python3
"""Runs one check over the tree: tidy.py CHECK [--root DIR] [options of the check].

Prints `file:line: what is wrong; what to do` for each finding; ends with 1 if there was one.
"""

import argparse
import pathlib
import sys

import docs
import exports
import file_size
import format as formatting
import header_alone
import include_rules
import source_rules
import words

ROOT = pathlib.Path(__file__).resolve().parents[2]

CHECKS = {
    "include_rules": lambda options: include_rules.check(options.root),
    "source_rules": lambda options: source_rules.check(options.root),
    "header_alone": lambda options: header_alone.check(
        options.root, options.compiler, options.include, options.scratch),
    "format": lambda options: formatting.check(options.root),
    "words": lambda options: words.check(options.root),
    "docs": lambda options: docs.check(options.root),
    "file_size": lambda options: file_size.check(options.root),
    "exports": lambda options: exports.check(options.root, options.library),
}


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("check", choices=sorted(CHECKS))
    parser.add_argument("--root", default=str(ROOT), help="the tree to look at")
    parser.add_argument("--compiler", default="g++", help="header_alone: the C++ compiler")
    parser.add_argument("--include", action="append", default=[], help="header_alone: a system include folder")
    parser.add_argument("--scratch", help="header_alone: a folder that may stay")
    parser.add_argument("--library", help="exports: libafd.so")
    options = parser.parse_args(arguments)
    if options.check == "exports" and not options.library:
        parser.error("exports needs --library")
    findings = CHECKS[options.check](options)
    for found in findings:
        print(found)
    print(f"{options.check}: {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
