"""Compare two folders of references for `make.py --check`, and write the manifest.

The inputs of a norm or a projection must be equal to the bit, and so must all integers, tensors and configs. Their
outputs may differ by `TOLERANCE`, outputs of the blocks by `BLOCKS`: on another processor torch uses other kernels,
which add a row's numbers in another order. To try a smaller kernel, set ATEN_CPU_CAPABILITY=avx2 (or default) and
ONEDNN_MAX_CPU_ISA=AVX2 (or SSE41) before Python starts.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file

from minibert.equations.input_layer import Array

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
import seeded  # noqa: E402  (it is in tests/support, which is not a package)

# Relative to max(1, |value|). Measured between torch's kernels for AVX-512, AVX2 and SSE4.1, of ATen and of oneDNN:
TOLERANCE = 2e-6  # after a norm or a projection of the input layer; measured 3.3e-7
BLOCKS = 1e-5  # in the blocks; measured 5.3e-6 on all-MiniLM-L6-v2, 2.4e-6 on seeded models
RMS_TOLERANCE = 0.15  # relative, for the reference's distance from float64; measured 0.092
AFTER_NORM = re.compile(r"norm|proj|mapping", re.IGNORECASE)
MANIFEST = "manifest.json"
# beside the cases' folders
OTHERS = ("full_size.*", "golden.safetensors", "rotary_scaling.json", "defaults.json", "tokenizer_ids.json")
SHIPPED = "all-MiniLM-L6-v2.safetensors"
PACKAGES = ("numpy", "torch", "transformers", "tokenizers", "safetensors")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def files(folder: Path) -> list[str]:
    """List the output of `make.py`: folders with a case.json, and the files beside them."""
    cases = [path for case in folder.glob("*/case.json") for path in case.parent.iterdir()]
    others = [path for name in OTHERS for path in folder.glob(name)]
    return sorted(path.relative_to(folder).as_posix() for path in (*cases, *others))


def write_json(path: Path, value: Any, depth: int) -> None:
    """Write JSON that a person can read: objects are opened to this depth, the rest is one line each."""

    def lines(value: Any, level: int) -> str:
        if level == depth or not isinstance(value, dict):
            return json.dumps(value, ensure_ascii=False)
        inner = [f"{' ' * (level + 1)}{json.dumps(key)}: {lines(v, level + 1)}" for key, v in value.items()]
        return "{\n" + ",\n".join(inner) + f"\n{' ' * level}}}"

    path.write_text(lines(value, 0) + "\n", encoding="utf-8")


def versions() -> dict[str, str]:
    """Return the versions that made the values: Python and the packages."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


def write_manifest(folder: Path, maker: str = "scripts/reference/make.py") -> None:
    """Write the manifest: the versions that made the files, and their hashes."""
    manifest = {
        "made_by": maker,
        "seed": "none: every number comes from tests/support/seeded.py, by integer arithmetic on its place",
        "versions": versions(),
        "sha256": {name: sha256(folder / name) for name in files(folder)},
    }
    for name in files(folder):
        (folder / name).chmod(0o644)  # safetensors writes files that only their owner may read
    write_json(folder / MANIFEST, manifest, depth=2)


def compare_arrays(
    name: str, old: dict[str, Array], new: dict[str, Array], exact: set[str], blocks: set[str]
) -> Iterator[str]:
    """Name every difference: `exact` keys to the bit, blocks within `BLOCKS`, the rest within `TOLERANCE`."""
    for key in sorted(old.keys() ^ new.keys()):
        yield f"{name}: {key} is only in the {'old' if key in old else 'new'} file"
    for key in sorted(old.keys() & new.keys()):
        a, b = old[key], new[key]
        if a.shape != b.shape or a.dtype != b.dtype:
            yield f"{name}: {key} was {a.dtype} {a.shape}, is {b.dtype} {b.shape}"
        elif a.tobytes() != b.tobytes():
            off = float(np.max(np.abs(a.astype(np.float64) - b) / np.maximum(1, np.abs(a)))) if a.size else 0.0
            if key in exact or not off <= (BLOCKS if key in blocks else TOLERANCE):
                yield f"{name}: {key} differs by {off:.2g} in {np.mean(a != b):.0%} of its entries"


def compare_json(name: str, old: Any, new: Any, where: str = "", tolerance: float = 0) -> Iterator[str]:
    """Walk both; the manifest compares `transformers_version`.

    Numbers may differ by `tolerance`, relative to max(1, |number|); numbers of full size have other tolerances.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted((old.keys() | new.keys()) - {"transformers_version"}):
            yield from compare_json(name, old.get(key), new.get(key), f"{where}/{key}", tolerance)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (a, b) in enumerate(zip(old, new, strict=True)):
            yield from compare_json(name, a, b, f"{where}[{i}]", tolerance)
    elif old != new:
        allowed = tolerance
        if isinstance(old, float) and isinstance(new, float):
            allowed = TOLERANCE if where.endswith("largest_output") else allowed
            allowed = RMS_TOLERANCE * abs(old) if "rms_error" in where else allowed * max(1.0, abs(old))
            if abs(old - new) <= allowed:
                return
        yield f"{name}: {where} was {old!r:.100}, is {new!r:.100}"


def compare_file(old: Path, new: Path, name: str) -> Iterator[str]:
    if name.endswith(".json"):
        yield from compare_json(name, *(json.loads((f / name).read_text(encoding="utf-8")) for f in (old, new)))
        return
    before, after = load_file(old / name), load_file(new / name)
    exact, blocks = set(before), set[str]()
    if name.endswith("trace.safetensors"):
        orders = json.loads((old / name).with_name("case.json").read_text(encoding="utf-8")).get("order")
        exact = {key for key in before if "|inputs|" in key}
        if isinstance(orders, dict):  # an input layer has an order for each kind
            for kind, keys in orders.items():
                exact |= {f"{kind}|{key}" for key in takewhile(lambda key: not AFTER_NORM.search(key), keys)}
        else:  # the blocks' input is a sum in GPT-2, elsewhere the output of a norm
            entering = {key for key in before if key.endswith("|hidden_states.0")}
            blocks, exact = set(before) - entering, exact | (entering if name.startswith("gpt2") else set())
    elif name == "golden.safetensors":  # BERT's norm is the only one
        exact = {key for key in before if not key.endswith("|embeddings.LayerNorm")}
    elif name == SHIPPED:
        blocks = {key for key in before if "|hidden_states." in key}
        exact = {key for key in before if not key.endswith("|embeddings.LayerNorm")} - blocks
        yield from compare_json(name, *(_about(folder / name) for folder in (old, new)))
    elif name == "full_size.safetensors":  # GPT-2 has no norm; the other outputs went through one
        exact = {key for key in before if key.startswith("gpt2|") or not key.endswith("|output")}
    yield from compare_arrays(name, before, after, exact, blocks)


def _about(path: Path) -> dict[str, Any]:
    """Read the shipped file's metadata, without the versions, which may change."""
    with safe_open(path, framework="np") as file:
        about: dict[str, Any] = json.loads(file.metadata()["about"])
    del about["versions"]
    return about


def parser_of(about: str | None, minilm: bool = False) -> argparse.ArgumentParser:
    """Parse a command line with --check, and --minilm if asked."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with what is there instead of writing")
    if minilm:
        parser.add_argument("--minilm", type=Path, default=os.environ.get("MINIBERT_MODEL"), metavar="FOLDER",
                            help="the folder of all-MiniLM-L6-v2 (or set MINIBERT_MODEL)")  # fmt: skip
    return parser


def quiet() -> None:
    """Silence the reference, and make it compute on one thread."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)


def fill(model: Any, spread: float = 1, norms: float | None = None, around: float = 1) -> None:
    """Fill every parameter, pad rows and norms too, by its name alone: `spread` times seeded numbers.

    A norm's weights are `norms` times seeded numbers (default: `spread`), around `around`. Fixed sinusoids stay: a file
    cannot choose them, and some files leave them out.
    """
    import torch

    fixed = {id(module.weight) for module in model.modules() if "Sinusoidal" in type(module).__name__}
    for name, parameter in model.named_parameters():
        if id(parameter) in fixed:
            continue
        made = seeded.values(tuple(parameter.shape), salt=zlib.crc32(name.encode()))
        norm = parameter.ndim == 1 and name.endswith("weight")
        made = np.float32(spread if norms is None or not norm else norms) * made
        made = made + np.float32(around) if norm else made
        parameter.data.copy_(torch.from_numpy(np.asarray(made)))
    for name, number in model.named_buffers():  # EmbeddingGemma 2's factor after each block
        if name.endswith("layer_scalar"):
            made = np.float32(1) + np.float32(spread) * seeded.values((1,), salt=zlib.crc32(name.encode()))
            number.copy_(torch.from_numpy(made))


def save_alone(model: Any, folder: Path, **options: Any) -> None:
    """Save a model as its class does; only config.json and model.safetensors stay."""
    model.save_pretrained(folder, **options)
    for extra in set(folder.iterdir()) - {folder / "config.json", folder / "model.safetensors"}:
        extra.unlink()


def make_or_check(
    check: bool, target: Path, make: Callable[[Path], object], differences: Callable[[Path, Path], Iterable[str]]
) -> int:
    """Write the files of a folder; or write them elsewhere and print every difference: 0 if there is none."""
    if not check:
        make(target)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        make(Path(scratch))
        found = list(differences(target, Path(scratch)))
    print("\n".join(found) if found else "all files made again: no difference")
    return 1 if found else 0


def compare_folders(old: Path, new: Path, only: list[str]) -> list[str]:
    """Name every difference, and print the packages whose versions differ."""
    made = files(new)
    asked = {*only, *(["golden"] if "bert" in only else [])}
    kept = [name for name in files(old) if not only or name.split("/")[0].split(".")[0] in asked]
    found = [f"{name}: is there, but is no longer made" for name in sorted(set(kept) - set(made))]
    found += [f"{name}: is made, but is not there" for name in sorted(set(made) - set(kept))]
    for name in sorted(set(made) & set(kept)):
        found += compare_file(old, new, name)
    manifest = json.loads((old / MANIFEST).read_text(encoding="utf-8")) if (old / MANIFEST).exists() else {}
    strange = [name for name in kept if manifest.get("sha256", {}).get(name) != sha256(old / name)]
    found += [f"{name}: is not the file that the manifest names" for name in strange]
    for package, written in manifest.get("versions", {}).items():
        here = platform.python_version() if package == "python" else version(package)
        if here != written:
            print(f"note: the files were made with {package} {written}, this is {here}")
    return found
