"""Make tests/reference: tiny checkpoints of every family, and the reference's values for them.

    python scripts/reference/make.py --minilm FOLDER            write tests/reference and the shipped file anew
    python scripts/reference/make.py --minilm FOLDER --check    make it elsewhere, compare; exit 1 on a difference
    python scripts/reference/make.py --only bert --only opt     only these cases (both with and without --check)

The reference is transformers on torch, on one CPU thread. Each case of `cases.py` becomes a folder:

    config.json, model.safetensors   as save_pretrained writes them
    case.json                        family, side, kinds of batches, order of the trace
    trace.safetensors                "<kind>|inputs|<name>" and "<kind>|<key>", key as in a layer's trace

golden.safetensors has the case `bert` in one file, for ports to other languages (tests/reference/GOLDEN.md).
rotary_scaling.json has rotary frequencies and angles of scaled models (rotary.py), tokenizer_ids.json the ids of small
tokenizers of every class (tokenizer_ids.py), defaults.json the defaults of the reference's config classes, for keys
with a default in our rows. `shipped` is the one file that is part of the package (shipped.py).

A key is the module's path in the base model, its value that module's output. `position_ids` are the positions before a
family's offset; `sum` is the input of the norm, or of the first block if there is no norm; `scaled` and `masked` are
the values after the two multiplications outside any module. Parameters come from integers (tests/support/seeded.py),
not from a random generator. The script stops unless a trace ends with exactly the bits that enter the first block in
transformers.
"""

from __future__ import annotations

import shutil
import sys
import zlib
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import check
import numpy as np
import torch
import transformers
from cases import CASES, PAST, VOCAB, Case
from check import ROOT, fill, seeded
from full_size import write_full_size
from golden import write_golden
from rotary import write_rotary
from safetensors.numpy import save_file
from shipped import FOLDER as SHIPPED_FOLDER
from shipped import write_shipped
from tokenizer_ids import write_tokenizer_ids

import minibert
from minibert.equations.input_layer import Array

BATCH, LENGTH = 2, 4
OTHER_INPUTS = {"types": ("token_type_ids", 2), "languages": ("langs", 3), "tasks": ("task_type_ids", 3)}


def save(case: Case, folder: Path) -> torch.nn.Module:
    """Build the case's model and save it by its class; only config.json and model.safetensors stay."""
    config = transformers.AutoConfig.for_model(case.family, **case.config)
    model = getattr(transformers, case.save)(config)
    fill(model, norms=5)
    check.save_alone(model, folder)
    return model


def load(case: Case, folder: Path, **changes: Any) -> torch.nn.Module:
    """Read the folder with the base model's class, as a user would; return the tower for texts."""
    model = getattr(transformers, case.base).from_pretrained(folder, **changes).eval()
    return getattr(model, "language_model", model)


def check_loaded(case: Case, saved: torch.nn.Module, loaded: torch.nn.Module) -> None:
    """Stop unless the base model, read from the file, has the input layer of the model that wrote the file."""
    for part in case.parts:
        twins = [m for path, m in saved.named_modules() if f".{path}".endswith(f".{part}") and "vision" not in path]
        read = loaded.get_submodule(part).state_dict()
        if len(twins) != 1 or not all(torch.equal(value, read[name]) for name, value in twins[0].state_dict().items()):
            raise SystemExit(f"{case.name}: {case.base} did not read {part} as {case.save} wrote it")


def make_inputs(case: Case, kind: str, words: torch.nn.Embedding) -> dict[str, Array]:
    """Build the batch of one kind: ids by formula, never the pad id by accident, always the table's last row."""
    pad = case.pad or 0
    shape = (1, case.longest) if kind == "full_length" else (BATCH, LENGTH)
    ids = seeded.integers(shape, VOCAB - 1, salt=zlib.crc32(f"{case.name} {kind}".encode()))
    ids += ids >= pad  # one id less to choose from, without the pad id
    ids[0, -1] = words.num_embeddings - 1 - (words.num_embeddings - 1 == pad)
    mask = np.ones(shape, np.int64)
    if "right_pad" in kind:
        mask[1, -2:] = 0
    elif kind == "left_pad":
        mask[1, :2] = 0
    elif "pads_inside" in kind:
        mask[0, 2] = mask[1, 0] = mask[1, 2] = 0
    if case.name == "mpnet-pad5":
        ids[0, 1] = 1  # MPNet's positions skip id 1, whatever the config says
    ids = np.where(mask == 1, ids, pad)
    if kind == "mask_unlike_ids":  # masked words, and padding that is not masked
        mask[0, 1] = mask[1, 2] = 0
        ids[0, 2] = ids[1, 0] = pad
    made: dict[str, Array] = {"input_ids": ids}
    if kind in ("right_pad", "left_pad", "pads_inside_mask", "mask_unlike_ids"):
        made["attention_mask"] = mask
    elif kind == "cached_mask":
        made["attention_mask"] = np.array([[1] * (PAST + LENGTH), [0, 0] + [1] * (PAST + LENGTH - 2)])
    elif kind == "explicit_positions":
        made["position_ids"] = np.array([np.arange(LENGTH)[::-1], [7, 7, 8, case.longest - 1]])
    elif kind == "inputs_embeds":
        made = {kind: seeded.values((*shape, words.embedding_dim), salt=zlib.crc32(case.name.encode()))}
    elif kind in OTHER_INPUTS:
        name, count = OTHER_INPUTS[kind]
        made[name] = np.array([[0, 0, 1, 1], [0, 1, count - 1, count - 1]])
    return made


class Recorder:
    """Hooks on the modules of one model; `trace` is filled in the reference's order."""

    def __init__(self, case: Case, model: torch.nn.Module) -> None:
        self.case, self.model = case, model
        self.trace: dict[str, torch.Tensor] = {}
        self.looked_up: list[tuple[int, torch.Tensor]] = []
        self.asked: torch.Tensor | None = None
        modules = dict(model.named_modules())
        outputs, inputs = {path: path for path in case.parts}, {case.sum_enters: "sum"}
        if case.masked:
            (outputs if case.masked == "embeddings" else inputs)[case.masked] = "masked"
        for path, key in outputs.items():
            modules[path].register_forward_hook(lambda _m, _i, output, key=key: self.output(key, output))
        for path, key in inputs.items():
            modules[path].register_forward_pre_hook(partial(self.input, key), with_kwargs=True)
        if case.position:
            self.table = modules[case.position].weight
            modules[case.position].register_forward_pre_hook(self.positions, with_kwargs=True)

    def output(self, key: str, output: torch.Tensor) -> None:
        self.keep(f"{key} (types)" if key in self.trace else key, output)

    def input(self, key: str, _module: torch.nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.keep(key, inputs[0] if inputs else named.get("hidden_states", named.get("inputs_embeds")))

    def positions(self, _module: torch.nn.Module, _inputs: Any, named: dict[str, Any]) -> None:
        self.asked = named.get("position_ids")

    def keep(self, key: str, value: torch.Tensor) -> None:
        # cloned, since some models continue in place; XLNet computes with (seq, batch), all others with (batch, seq)
        value = value.transpose(0, 1) if self.case.family == "xlnet" else value
        self.trace[key] = value.detach().clone(memory_format=torch.contiguous_format)

    def run(self, inputs: dict[str, torch.Tensor], past_length: int) -> dict[str, torch.Tensor]:
        module = getattr(self.model, self.case.side) if self.case.side else self.model
        if past_length:
            before = torch.zeros((BATCH, past_length), dtype=torch.int64)
            seen = {"attention_mask": inputs["attention_mask"][:, :past_length]} if "attention_mask" in inputs else {}
            cache = module(input_ids=before, use_cache=True, **seen).past_key_values
            inputs = {**inputs, "past_key_values": cache}
        self.trace.clear()
        self.looked_up = []
        plain = torch.nn.functional.embedding

        def watched(ids: torch.Tensor, weight: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
            self.looked_up.append((weight.data_ptr(), ids))
            return plain(ids, weight, *rest, **named)

        with mock.patch.object(torch.nn.functional, "embedding", watched):
            result = module(**inputs, output_hidden_states=True)
        self.complete(inputs)
        last = list(self.trace.values())[-1]
        if not torch.equal(last, result.hidden_states[0]):
            raise SystemExit(f"{self.case.name}: what enters the first block is not the trace's last value")
        return self.trace

    def complete(self, inputs: dict[str, Any]) -> None:
        """Add the values that no hook sees: the positions, and the word rows times a factor."""
        if self.case.scaled:
            words = self.trace.get(self.case.parts[0], inputs.get("inputs_embeds"))
            module = getattr(self.model, self.case.side) if self.case.side else self.model
            total = scaled = words * getattr(module, self.case.scaled)
            if self.case.position:
                total = scaled + self.trace[self.case.position]
            if torch.equal(total, self.trace["sum"]):
                first = {self.case.parts[0]: words} if self.case.parts[0] in self.trace else {}
                self.trace = {**first, "scaled": scaled, **self.trace}
        if self.case.position:
            rows = [ids for pointer, ids in self.looked_up if pointer == self.table.data_ptr()]
            if not rows and self.asked is not None:
                rows = [self.asked]  # Whisper indexes its table without a lookup
            ids = rows[0] - self.case.offset
            self.trace = {"position_ids": ids.long(), **self.trace}


def make_case(case: Case, folder: Path) -> None:
    """Write one case's four files."""
    folder.mkdir(parents=True, exist_ok=True)
    saved, model = save(case, folder), load(case, folder)
    check_loaded(case, saved, model)
    stored: dict[str, Array] = {}
    order, past = {}, {}
    for kind in case.kinds:
        past[kind] = PAST if kind.startswith("cached") else 0
        caches = past[kind] and case.position == "embeddings.position_embeddings"  # an encoder does so on request
        asked = load(case, folder, **({"is_decoder": True} if caches else {}))
        inputs = make_inputs(case, kind, asked.get_submodule(case.parts[0]))
        with torch.no_grad():
            trace = Recorder(case, asked).run({name: torch.from_numpy(a) for name, a in inputs.items()}, past[kind])
        order[kind] = list(trace)
        if past[kind]:  # the number of cached tokens, only for readers of this file
            inputs["past_length"] = np.array(past[kind])
        stored |= {f"{kind}|inputs|{name}": array for name, array in inputs.items()}
        stored |= {f"{kind}|{key}": value.contiguous().numpy() for key, value in trace.items()}
    save_file(stored, folder / "trace.safetensors")
    facts = {
        "family": case.family, "side": case.side or None, "architecture": case.save, "base": case.base,
        "kinds": list(case.kinds), "past_length": past, "order": order,
    }  # fmt: skip
    check.write_json(folder / "case.json", facts, depth=1)


def write_defaults(target: Path) -> None:
    """Write defaults.json: model_type -> config key -> the class's default, for the keys of our rows."""
    found = {}
    for name, row in minibert.FAMILIES.items():
        kind = type(transformers.AutoConfig.for_model(name))
        kind = kind.sub_configs.get(row.section, kind)
        known = {**row.defaults, "tie_word_embeddings": True}
        found[name] = {key: getattr(kind, key) for key in known if hasattr(kind, key)}
    check.write_json(target / "defaults.json", found, depth=1)


def make_all(target: Path, only: list[str], minilm: Path | None) -> None:
    """Write every requested case, and the facts of full size."""
    for case in CASES:
        if not only or case.name in only:
            make_case(case, target / case.name)
    others = {"rotary_scaling": write_rotary, "defaults": write_defaults, "tokenizer_ids": write_tokenizer_ids}
    for name, write in {"bert": write_golden, **others}.items():
        if not only or name in only:
            write(target)
    if minilm is not None and (not only or "full_size" in only):
        write_full_size(target, minilm)


def make_reference(again: bool, only: list[str], minilm: Path | None) -> int:
    """Write the package's file and tests/reference, or write them elsewhere and compare; 1 if one differs."""
    target, differ = ROOT / "tests" / "reference", 0

    def make(folder: Path) -> None:
        for old in folder.glob("*/case.json"):
            if not only or old.parent.name in only:
                shutil.rmtree(old.parent)
        make_all(folder, only, minilm)
        if folder == target:
            check.write_manifest(target)

    if minilm is not None and (not only or "shipped" in only):
        compare = partial(check.compare_file, name=check.SHIPPED)
        differ = check.make_or_check(again, SHIPPED_FOLDER, partial(write_shipped, folder=minilm), compare)
    if only != ["shipped"]:
        differ |= check.make_or_check(again, target, make, partial(check.compare_folders, only=only))
    return differ


def main() -> int:
    parser = check.parser_of(__doc__, minilm=True)
    parser.add_argument("--only", action="append", default=[], metavar="CASE",
                        help="one case, or another file by its name without the ending; repeatable")  # fmt: skip
    arguments = parser.parse_args()
    of_minilm = {"full_size", "shipped"}
    known = {case.name for case in CASES} | of_minilm | {"rotary_scaling", "defaults", "tokenizer_ids"}
    if unknown := set(arguments.only) - known:
        parser.error(f"no case {sorted(unknown)}; known are {sorted(known)}")
    minilm = Path(arguments.minilm) if arguments.minilm else None
    if minilm is None and (not arguments.only or of_minilm & set(arguments.only)):
        parser.error("full_size and shipped need --minilm FOLDER or the environment variable MINIBERT_MODEL")
    check.quiet()
    return make_reference(arguments.check, arguments.only, minilm)


if __name__ == "__main__":
    sys.exit(main())
