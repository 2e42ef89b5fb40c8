#!/usr/bin/env python3
"""Tokens per second of `afd run` in a layout, over those of the colocated run on the same prompts.

Answers: what does disaggregation cost on this machine, where attention and FFN ranks have to share the
processors that a colocated run has for itself? Paired runs, A B A B, medians of each and of the ratios;
the outputs of every run are compared, since a fast wrong run has measured nothing.

    benchmarks/run_ratio.py --afd build/release/bin/afd [--pairs 9] [--attention-ranks 4] [--ffn-ranks 2]

Not measured: start-up and loading (the runs' own clocks begin when all ranks have met).
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
NUM_PROMPTS = 32


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--afd", default=str(ROOT / "build/release/bin/afd"))
    parser.add_argument("--model", default=str(ROOT / "models/austen-moe"))
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--attention-ranks", type=int, default=4)
    parser.add_argument("--ffn-ranks", type=int, default=2)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def write_prompts(path):
    golden = json.loads((ROOT / "models/austen-moe/golden.json").read_text())
    prompts = [case["prompt"] for case in golden["cases"] if case.get("prompt")]
    lines = [json.dumps({"prompt": prompts[i % len(prompts)]}) for i in range(NUM_PROMPTS)]
    path.write_text("\n".join(lines) + "\n")


def run(args, prompts, layout):
    command = [args.afd, "run", "--model", args.model, "--prompts", str(prompts), "--json",
               "--max-new-tokens", str(args.max_new_tokens), *layout]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    result = json.loads(done.stdout)
    tokens = [output["token_ids"] for output in result["outputs"]]
    return result["stats"]["tokens_per_second"], tokens


def main():
    args = arguments()
    colocated = ["--colocated", "--threads", str(args.threads)]
    layout = ["--attention-ranks", str(args.attention_ranks), "--ffn-ranks", str(args.ffn_ranks),
              "--stages", str(args.stages)]
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        prompts = pathlib.Path(folder) / "prompts.jsonl"
        write_prompts(prompts)
        for _ in range(args.pairs):
            alone, wanted = run(args, prompts, colocated)
            split, found = run(args, prompts, layout)
            if found != wanted:
                sys.exit("the layout generated other tokens than the colocated run")
            pairs.append((alone, split))
    ratios = sorted(split / alone for alone, split in pairs)
    report = {
        "layout": f"{args.attention_ranks}A{args.ffn_ranks}F",
        "stages": args.stages,
        "prompts": NUM_PROMPTS,
        "colocated_threads": args.threads,
        "pairs": len(pairs),
        "colocated_tokens_per_second": statistics.median(alone for alone, _ in pairs),
        "layout_tokens_per_second": statistics.median(split for _, split in pairs),
        "ratio": {"median": statistics.median(ratios), "min": ratios[0], "max": ratios[-1]},
    }
    if args.json:
        print(json.dumps(report, indent=1))
        return
    print(f"{report['layout']}, {args.stages} stages, {NUM_PROMPTS} prompts, {len(pairs)} pairs: "
          f"{report['layout_tokens_per_second']:.0f} tokens/s, colocated with {args.threads} threads "
          f"{report['colocated_tokens_per_second']:.0f}; ratio median {report['ratio']['median']:.2f}, "
          f"{ratios[0]:.2f} to {ratios[-1]:.2f}")


if __name__ == "__main__":
    main()
