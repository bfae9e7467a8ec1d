"""Changed runs beside the reference, whose modules' outputs are changed by hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import encoders
import numpy as np
import pytest
from encoder_files import off

import minibert
from minibert.equations.input_layer import Array

pytestmark = pytest.mark.reference

ROWS = 1e-5  # relative to max(1, |reference|), last hidden states; measured 2.9e-6
MODELS = ("bert", "gpt2", "mpnet", "modernbert", "qwen3", "gemma3_text")
IDS = np.array([[5, 9, 3, 12, 7, 20, 4], [8, 4, 6, 11, 21, 3, 10]])
BLOCK = {"bert": "encoder.layer.0", "gpt2": "h.0", "mpnet": "encoder.layer.0"}  # the others': layers.0
POSITIONS = {"bert": "embeddings.position_embeddings", "gpt2": "wpe"}


class Both:
    """One model, here and there."""

    def __init__(self, name: str, folder: Path) -> None:
        import transformers

        encoders.write(folder, name)
        self.name, self.encoder = name, minibert.load_encoder(folder)
        self.model: Any = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()

    def theirs(self, *hooks: Any, mask: Any = None) -> Array:
        import torch

        with torch.no_grad(), ExitStack() as stack:
            for hook in hooks:
                stack.enter_context(hook)
            found: Array = self.model(torch.from_numpy(IDS), attention_mask=mask).last_hidden_state.numpy()
        return found

    def out(self, path: str, function: Callable[[Any, Any], Any]) -> Any:
        """A hook: `function` of the module's inputs and output gives what goes on."""
        return removed(
            self.model.get_submodule(path).register_forward_hook(lambda _, given, found: function(given, found))
        )

    def into(self, path: str, function: Callable[[Any], Any]) -> Any:
        """A hook: `function` of the module's first input gives what goes in."""
        module = self.model.get_submodule(path)
        return removed(module.register_forward_pre_hook(lambda _, given: (function(given[0]), *given[1:])))


@contextmanager
def removed(hook: Any) -> Iterator[None]:
    try:
        yield
    finally:
        hook.remove()


@pytest.fixture(scope="module", params=MODELS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    return Both(request.param, tmp_path_factory.mktemp("models") / request.param)


def test_heads(both: Both) -> None:
    """What a head gives is its part of what the output map is given."""
    blocks, gone = both.encoder.stack.blocks, [(0, 1), (0, 3), (1, 2)]

    def silenced(i: int) -> Callable[[Any], Any]:
        width = blocks[i].attention.head_dim

        def silence(context: Any) -> Any:
            context = context.clone()
            for block, head in gone:
                if block == i:
                    context[..., head * width : (head + 1) * width] = 0
            return context

        return silence

    theirs = both.theirs(*(both.into(block.attention.output, silenced(i)) for i, block in enumerate(blocks)))
    ours = both.encoder(IDS, change=minibert.knock_out(both.encoder, heads=gone))
    assert off(ours, theirs) <= ROWS
    assert off(ours, both.theirs()) > 0.01


def test_a_block(both: Both) -> None:
    def passed_by(given: Any, found: Any) -> Any:
        return (given[0], *found[1:]) if isinstance(found, tuple) else given[0]

    theirs = both.theirs(both.out(BLOCK.get(both.name, "layers.0"), passed_by))
    ours = both.encoder(IDS, change=minibert.knock_out(both.encoder, blocks=[0]))
    assert off(ours, theirs) <= ROWS
    assert off(ours, both.theirs()) > 0.01


def test_positions(both: Both) -> None:
    """Position rows of zeros, queries and keys rotated by no angle, a bias of zero for each distance."""
    import torch

    hooks = []
    if both.name in POSITIONS or both.name == "mpnet":
        path = POSITIONS.get(both.name, "embeddings.position_embeddings")
        hooks.append(both.out(path, lambda given, found: torch.zeros_like(found)))
    if both.name == "mpnet":
        hooks.append(both.out("encoder.relative_attention_bias", lambda given, found: torch.zeros_like(found)))
    if both.encoder.stack.rotary is not None:
        (path,) = (path for path, _ in both.model.named_modules() if path.endswith("rotary_emb"))
        hooks.append(both.out(path, lambda given, found: (torch.ones_like(found[0]), torch.zeros_like(found[1]))))
    ours = both.encoder(IDS, change=minibert.knock_out(both.encoder, positions=True))
    assert off(ours, both.theirs(*hooks)) <= ROWS
    assert off(ours, both.theirs()) > 0.01


def test_the_mask(both: Both) -> None:
    import torch

    if both.name in ("bert", "mpnet"):
        with pytest.raises(ValueError, match="sees all others"):
            minibert.knock_out(both.encoder, mask=True)
        return
    nothing = torch.zeros(len(IDS), 1, IDS.shape[1], IDS.shape[1])
    if both.name != "gpt2":  # a model of several masks is given each by name
        nothing = dict.fromkeys(("full_attention", "sliding_attention"), nothing) if both.name != "qwen3" else nothing
    ours = both.encoder(IDS, change=minibert.knock_out(both.encoder, mask=True))
    assert off(ours, both.theirs(mask=nothing)) <= ROWS
    assert off(ours, both.theirs()) > 0.01


def test_the_output_of_every_module(both: Both) -> None:
    """Each by itself; the same numbers are put in its place, here and there."""
    import torch

    plain, paths = both.encoder.trace(IDS), dict(both.model.named_modules())
    names, random = [name for name in plain if name in paths], np.random.default_rng(1)
    assert len(names) >= 12
    for name in names:
        values = (plain[name] + random.standard_normal(plain[name].shape)).astype(np.float32)
        given = values.swapaxes(1, 2) if name in both.encoder.stack.transposed_in_reference else values

        def put(_: Any, found: Any, given: Array = given) -> Any:
            return torch.from_numpy(np.ascontiguousarray(given)).reshape(found.shape)

        ours = both.encoder(IDS, change={name: values})
        assert off(ours, both.theirs(both.out(name, put))) <= ROWS, name
