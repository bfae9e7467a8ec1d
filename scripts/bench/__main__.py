#!/usr/bin/env python3
"""Measure minibert beside the libraries that people would use instead.

    python scripts/bench                      every section; > scripts/bench/results.md makes that page
    python scripts/bench one-core --quick     one section, three rounds: a look, not a result
    python scripts/bench one-core --before /tmp/before    beside an older state of this project, too

Prints the machine, and a Markdown table for each section. Each figure is measured in turn with another one, and each
round has one ratio of the two. The table has the median and the middle half of these ratios. On a machine with other
work a single time means little. A ratio suffers less, so the line under a table names the share of other work. A limit
that is not met is reported, and the exit code is 0 all the same. README.md of this folder describes the sections.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # its files are the package `bench`

from bench.children import child
from bench.machine import OtherWork, foot, head, installed
from bench.models import real_model
from bench.sections import SECTIONS


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("section", nargs="*", help=f"some of {', '.join(SECTIONS)}; without a name, every section")
    parser.add_argument("--quick", action="store_true", help="three rounds, smaller sizes: a look, not a result")
    parser.add_argument("--models", type=Path, metavar="FOLDER", help="keep the made-up checkpoints here (3 GB)")
    parser.add_argument("--before", type=Path, metavar="FOLDER", help="a git worktree of an older state")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.section if name not in SECTIONS]:
        parser.error(f"expected some of {', '.join(SECTIONS)}, found {unknown[0]}")
    if sys.platform != "linux":
        parser.error(f"expected Linux, whose /proc the benchmark reads, found {sys.platform}")
    if not (real_model() / "model.safetensors").is_file():
        how = "install it by sh scripts/demo, or name its folder in MINIBERT_MODEL"
        parser.error(f"expected all-MiniLM-L6-v2, found no model.safetensors in {real_model()}: {how}")
    if lacking := [name for name in ("pyarrow", "starlette", "uvicorn") if not installed(name)]:
        parser.error(f"expected {', '.join(lacking)}: pip install '.[bench,bulk,serve]'")
    before = arguments.before and arguments.before.resolve()
    if before and not (before / "minibert" / "__init__.py").is_file():
        parser.error(f"--before: expected a folder of this project, found no minibert/__init__.py in {before}")
    kernel = child("children.kernel")
    print(head(sys.argv[1:], kernel), flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        models = (arguments.models or Path(scratch)).resolve()
        for section in arguments.section or SECTIONS:
            other, options = OtherWork(), [models, kernel, "yes" * arguments.quick, before or ""]
            rows = child("sections.table", section, *options)
            heading = section + " (three rounds, --quick)" * arguments.quick
            print(f"### {heading}\n\n{rows}\n\n{foot(section, kernel, other.share())}", flush=True)


if __name__ == "__main__":
    main()
