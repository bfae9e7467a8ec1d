"""Plant sixty mistakes in a copy of the package, one after the other, and see whether its tests notice.

python scripts/mutants.py            all of them, an hour on two busy cores; exit code 1 if a mistake survives
python scripts/mutants.py hub bulk   those of these wings

Run it before and after tests are shortened: a mistake that was caught has to be caught again. The tree is not touched,
and its tests pass before. A mistake is a file, a text that occurs once in it, and the text to put in its place: a text
that is no longer found is an error, so the list follows the code. The files that should notice run first, then the
whole package.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("minibert", "tests", "scripts", "pyproject.toml", "README.md")
LONGEST = 1800  # seconds; tests that take longer hang, and a mistake that makes them hang is noticed


class Mutant(NamedTuple):
    tests: str  # the test files that should notice, without "test_" and ".py"
    file: str
    text: str
    replacement: str


class Wing(NamedTuple):
    tests: str
    package: str
    mutants: tuple[Mutant, ...]


M = Mutant
WINGS = {
    "equations": Wing("equations", "equations", (
        M("input_layer", "input_layer", "+ past_length) * real + padding_idx", ") * real + padding_idx"),
        M("blocks", "blocks", "(np.abs(back) <= window)", "(back <= window)"),
        M("input_layer", "fast", "        first = 0  # otherwise", "        pass  # otherwise"),
        M("attention_positions", "rotary_scaling", "louder(mscale) / louder(mscale_all_dim)", "louder(mscale)"),
        M("vector_formulas", "quantization", "np.floor((vectors", "np.rint((vectors"),
    )),
    "families": Wing("families models", "families", (
        M("families", "roberta", "padding_idx=1, cached=False", "padding_idx=1"),
        M("encoder", "t5", 'if kind == "gated-gelu"', 'if kind == "gelu"'),
        M("encoder", "parts/config", "if len(entries) != config", "if len(entries) < config"),
        M("bad_input families", "parts/steps", "if first >= shape[0] - self.extra", "if first > shape[0] - self.extra"),
        M("attention_positions", "parts/attention_schemes", 'by_type.get("truncate", True)', "True"),
    )),
    "run": Wing("threads models", "models/run", (
        M("calls", "layer", "                unseen = unseen[texts]\n", ""),
        M("families", "layer", "if self._counted and mask.shape[1] != inputs.seq + past_length", "if False"),
        M("sparse sentences", "pipeline", "[deepcopy(results[numbers[key]]) for", "[results[numbers[key]] for"),
        M("sentences bulk", "pipeline", "input_ids) <= self.skip", "input_ids) < self.skip"),
        M("changes", "changes", "values.shape not in (whole, (1, *whole[1:]))", "values.shape != whole"),
    )),
    "heads": Wing("models", "models/heads", (
        M("uses", "labels", "(ahead < longest)", "(ahead <= longest)"),
        M("calls", "labels", "if problem_type == SEVERAL or head.labels == 1 else", "if problem_type == SEVERAL else"),
        M("uses", "prediction", "if settings.get(key) not in (None,", "if settings.get(key) not in (0,"),
        M("heads", "heads", "head.pad_id is None and len(keep) > 1", "head.pad_id is None and len(keep) > 2"),
        M("sparse", "sparse", "np.sort(top_indices(np.abs(vector.weights)[None], most)[0])",
          "top_indices(np.abs(vector.weights)[None], most)[0]"),
    )),
    "open": Wing("models", "models/open", (
        M("weights", "adapter", 'math.sqrt(rank) if self._settings.get("use_rslora") else rank', "rank"),
        M("repository layers", "load", "folder = not COMMIT.fullmatch(revision)", "folder = True"),
        M("folders", "load", 'slashed.count("/") > 1', 'slashed.count("/") > 2'),
        M("folders", "binder", "if stored_shape == shape[::-1]", "if False"),
        M("made_folders", "extract", "raw.ndim > 1 and stored != NARROW", "stored != NARROW"),
    )),
    "sentences": Wing("models", "models/sentences", (
        M("sentence_folders", "sentence_config", 'limits.append((longest, "the position table"))', "pass"),
        M("refused_settings", "sentence_config", "    if unknown or not poolings:", "    if unknown:"),
        M("refused_settings", "folder", 'or more.get("route_mappings") or', "or"),
        M("late", "comparing", "[rows[rows.any(axis=1)] for rows in texts]", "[*texts]"),
        M("search", "search", "~(row <= scores[i, -1])", "row > scores[i, -1]"),
    )),
    "files": Wing("files", "files", (
        M("checkpoint", "checkpoint", "if len(entries) != len(pairs)", "if False"),
        M("checkpoint", "checkpoint", r".*[/\\:]", ".*[/]"),
        M("checkpoint", "tables", ".max() >= _NOT_FINITE", ".max() > _NOT_FINITE"),
        M("tokenizer", "tokenizer", "(long, short) if first > second", "(long, short) if first >= second"),
        M("writing", "writing", "mode = stat.S_IMODE(path.stat().st_mode)", "path.stat()"),
    )),
    "hub": Wing("hub", "hub", (
        M("remote", "remote", "one_size = len({size for *_, size in spans}) == 1", "one_size = bool(spans)"),
        M("remote", "remote", "+ (stop == self._size)", "+ 1"),
        M("remote faults", "remote", "            if received != wanted:", "            if False:"),
        M("faults repository", "repository", '.sha or ""):  # it becomes part of a path', '.sha and "0" * 40):'),
        M("faults", "repository", 'if token and not re.fullmatch(r"[!-~]+", token)', "if False"),
    )),
    "commands": Wing("commands", "commands", (
        M("refused", "common", "count < 1:", "count < 0:"),
        M("terminal", "common", "not (reads and stdin) and not (prints and stdout)", "not (reads and stdin)"),
        M("terminal", "common", r"\x7f-\x9f", r"\x7f"),
        M("interrupted", "../cli", "        if pressed:\n            return 128 + pressed[-1]\n", ""),
        M("encode_command", "common", "number += skipped <= number", "number += skipped < number"),
    )),
    "serve": Wing("serve", "serve", (
        M("waiting", "app", "self.inside >= self.limits.waiting", "self.inside > self.limits.waiting"),
        M("refusals", "app", "not (last.isdigit() or", "not ("),
        M("refusals", "app", "            if len(body) > limits.body:", "            if False:"),
        M("refusals", "requests", "if any(value != next(iter(", "if any(value == 7 != next(iter("),
        M("worker", "worker", "    for single in ready if len(ready) > 1 else ():", "    for single in ():"),
    )),
    "bulk": Wing("bulk", "bulk", (
        M("bulk", "stored", 'elif meta["rows"] != ends[-1] + rows:', "elif False:"),
        M("bulk", "stored", 'MAY_DIFFER = ("model_path", "truncated")',
          'MAY_DIFFER = ("model_path", "truncated", "identity")'),
        M("bulk", "job", "        if now != before:", "        if False:"),
        M("texts", "texts", "{int, float} <= {*values}", "False"),
        M("texts", "texts", 'for line in lines), strict=True)', "for line in lines))"),
    )),
    "verify": Wing("verify show", ".", (
        M("trace_files against", "verify/report", "bool(np.all(a == a[:1]))", "True"),
        M("vectors", "verify/vectors", "<= len(apart) / 10", "<= len(apart) / 2"),
        M("verify_command against", "verify/report", "int(d.equal * 1000) / 10", "round(d.equal * 100, 1)"),
        M("live pictures", "show/attention", "(query != key) & ~separators", "(query != key)"),
        M("contributions", "show/prediction", "scaled = scaled - scaled.mean(axis=-1, keepdims=True)", "pass"),
    )),
}  # fmt: skip


def path_of(wing: Wing, mutant: Mutant) -> Path:
    return Path("minibert", wing.package, f"{mutant.file}.py")


def checked() -> None:
    """Exit if a text does not occur exactly once in its file, or a test file is not there."""
    for wing, mutant in ((each, mutant) for each in WINGS.values() for mutant in each.mutants):
        path = path_of(wing, mutant)
        if (found := (ROOT / path).read_text(encoding="utf-8").count(mutant.text)) != 1:
            sys.exit(f"expected {mutant.text!r} once in {path}, found it {found} times; write another")
        tests_of(mutant)


def tests_of(mutant: Mutant) -> list[str]:
    found = [path for name in mutant.tests.split() for path in ROOT.glob(f"tests/*/test_{name}.py")]
    if len(found) < len(mutant.tests.split()):
        sys.exit(f"expected a test file for each of {mutant.tests!r}, found {[path.name for path in found]}")
    return [str(path.relative_to(ROOT)) for path in found]


def outcomes(copy: Path, names: list[str]) -> Iterator[tuple[str, Mutant, str]]:
    """Apply each mistake in turn; yield the first test that fails with it, "" if none does."""
    later = time.time()
    for name in names:
        wing = WINGS[name]
        for mutant in wing.mutants:
            path = copy / path_of(wing, mutant)
            right = path.read_text(encoding="utf-8")
            for text in (right.replace(mutant.text, mutant.replacement), right):
                path.write_text(text, encoding="utf-8")
                later += 2  # Python compares whole seconds to see that a file has changed
                os.utime(path, (later, later))
                if text != right:
                    every = [f"tests/{each}" for each in wing.tests.split()]
                    yield name, mutant, first_failure(tests_of(mutant), copy) or first_failure(every, copy)


def first_failure(tests: list[str], folder: Path) -> str:
    """Run tests; return the name of the first that fails, "" if all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(folder), "CI": "true", "CI_WITHOUT_REFERENCE": "1"}
    try:
        run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return "hangs"
    if run.returncode not in (0, 1, 2):
        sys.exit(f"{run.stdout}{run.stderr}\npytest did not run: exit code {run.returncode}, its output is above")
    failed = [line.split()[1] for line in run.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return failed[0] if failed else "does not import" * (run.returncode == 2)


def main() -> None:
    checked()
    names = sys.argv[1:] or [*WINGS]
    if unknown := set(names) - WINGS.keys():
        sys.exit(f"expected wings among {', '.join(WINGS)}, found {', '.join(unknown)}")
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        for each in COPIED:
            copy = shutil.copytree if (ROOT / each).is_dir() else shutil.copy2
            copy(ROOT / each, Path(folder, each))
        for name, mutant, failed in outcomes(Path(folder), names):
            print(f"{name}: {mutant.file}: {mutant.text.strip()!r:.60}: {failed or 'SURVIVES'}", flush=True)
            survived += not failed
    sys.exit(f"{survived} survive" if survived else 0)


if __name__ == "__main__":
    main()
