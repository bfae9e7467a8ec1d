"""Whole layers by name: their bytes at bert-base's sizes, and no request offline."""

from __future__ import annotations

import io
import itertools
import json
import math
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from checkpoints import BERT, SPECIAL, wordpiece_json, write_hollow
from fake_hub import FakeHub, commit_of, environment, files_of, hub_of, run
from huggingface_hub.utils.tqdm import progress_bar_states

import minibert

VOCAB, DIM, POSITIONS = 30522, 768, 512
TEXT = "we lived above the clouds"  # seven tokens with [CLS] and [SEP]
WORDS = {"we": 2057, "lived": 2973, "above": 2682, "the": 1996, "clouds": 8044}
PARTS = ("query", "key", "value", "output", "intermediate.in", "intermediate.out", "a.b.c", "d.e.f")


def shapes_of(vocab: int, dim: int, positions: int) -> dict[str, tuple[int, ...]]:
    tables = {"word": vocab, "position": positions, "token_type": 2}
    named = {f"bert.embeddings.{name}_embeddings.weight": (rows, dim) for name, rows in tables.items()}
    return named | {f"bert.embeddings.LayerNorm.{part}": (dim,) for part in ("weight", "bias")}


def bert_folder(folder: Path, vocab: int, dim: int, positions: int, words: dict[str, int], layers: int) -> Path:
    """A BERT of any size, with its encoder; all tensors but the input layer's are a hole in the file."""
    shapes = shapes_of(vocab, dim, positions)
    count = sum(map(math.prod, shapes.values()))  # they come first in the file
    for i, part in itertools.product(range(layers), PARTS):
        shapes[f"bert.encoder.layer.{i:02}.attention.{part}.weight"] = (dim, dim + dim // 2)
        shapes[f"bert.encoder.layer.{i:02}.attention.{part}.bias"] = (dim,)
    sizes = {"vocab_size": vocab, "hidden_size": dim, "max_position_embeddings": positions, "num_attention_heads": 4}
    places = write_hollow(folder, {**BERT, **sizes}, shapes)
    with open(folder / "model.safetensors", "r+b") as file:
        file.seek(min(places.values()))
        file.write(np.random.default_rng(0).standard_normal(count, np.float32).tobytes())
    rows = dict(enumerate(SPECIAL)) | {i: word for word, i in words.items()}
    (folder / "tokenizer.json").write_text(wordpiece_json(rows.get(i, f"w{i}") for i in range(vocab)), "utf-8")
    return folder


# -- at the sizes of bert-base-uncased ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = bert_folder(tmp_path_factory.mktemp("large") / "bert", VOCAB, DIM, POSITIONS, WORDS, layers=12)
    assert (folder / "model.safetensors").stat().st_size > 400_000_000
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def hub(large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with hub_of(monkeypatch, tmp_path / "home", "bert-base-uncased", large) as hub:
        yield hub
    shutil.rmtree(tmp_path / "home")


def test_seven_tokens_of_bert_base_cost_less_than_a_megabyte(hub: FakeHub, large: Path) -> None:
    layer, local = minibert.load("bert-base-uncased", lazy=True), minibert.load(large)
    output = layer(**layer.tokenize(TEXT))
    assert output.shape == (1, 7, DIM)
    assert hub.sent <= 1_000_000  # measured 598,000, of which tokenizer.json 498,000 and the header 32,000
    assert sum(request.sent for request in hub.asked("model.safetensors")) <= 110_000
    assert np.array_equal(output, local(**local.tokenize(TEXT)))
    before = len(hub.requests)
    ids = np.arange(100, 114, 2)[None]  # the worst: one unwanted row between two is cheaper than a request
    assert np.array_equal(layer(ids), local(ids))
    assert len(hub.requests) - before == 1
    assert sum(request.sent for request in hub.requests[before:]) <= 45_000  # measured 40,960
    assert {request.authorization for request in hub.requests} == {None}  # the Hub refuses "None", a public model too
    layer(np.arange(1000, 1000 + 6 * POSITIONS).reshape(6, -1), threads=1)  # several blocks of rows, all in one request
    assert len(hub.requests) - before == 3  # and one for further positions


def test_the_whole_layer_costs_its_tensors_and_two_percent(hub: FakeHub, large: Path) -> None:
    layer = minibert.load("bert-base-uncased")
    tensors = sum(4 * math.prod(shape) for shape in shapes_of(VOCAB, DIM, POSITIONS).values())
    assert hub.sent <= 1.02 * tensors  # measured 1.0004
    ids = np.random.default_rng(1).integers(0, VOCAB, (4, POSITIONS))
    assert np.array_equal(layer(ids), minibert.load(large)(ids))
    hub.forget()
    again = minibert.load("bert-base-uncased", revision=commit_of("bert-base-uncased"))
    assert np.array_equal(again(ids), layer(ids))
    assert not hub.asked("safetensors")


# -- offline is offline ------------------------------------------------------------------------------------------

# runs a few lines and prints every socket, every write and every program that Python was asked for meanwhile
WATCHED = """
import json, os, sys
seen = []
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FORBIDDEN = ("socket.", "http.", "urllib.", "ssl.", "subprocess.", "shutil.", "tempfile.", "os.system", "os.exec",
             "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.chown",
             "os.truncate", "os.utime")
def hook(event, args):
    if event.startswith(FORBIDDEN) or (event == "open" and isinstance(args[2], int) and args[2] & WRITES):
        seen.append([event, [str(arg) for arg in args]])
sys.addaudithook(hook)
CODE
sys.stdout.write(json.dumps([seen, result]))
"""

EMBED = """
import minibert
layer = minibert.load(NAME)
result = layer(**layer.tokenize("a b a"))[0, :, 0].tolist()
layer.close()
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = bert_folder(tmp_path_factory.mktemp("small") / "bert", 2000, 48, 64, {"a": 7, "b": 1999}, layers=1)
    # as today's folders have it; beside it no older file with special tokens is asked for
    (folder / "tokenizer_config.json").write_text('{"added_tokens_decoder": {}}', encoding="utf-8")
    return folder


def watched(code: str, env: dict[str, str]) -> object:
    seen, result = json.loads(run(WATCHED.replace("CODE", code), env))
    assert seen == []
    return result


def expected(small: Path) -> list[float]:
    with minibert.load(small) as layer:
        return layer(**layer.tokenize("a b a"))[0, :, 0].tolist()  # type: ignore[no-any-return]


def tree(folder: Path) -> list[tuple[str, float]]:
    return sorted((str(path), path.lstat().st_mtime) for path in folder.rglob("*"))


def test_the_watcher_sees_sockets_and_writes(tmp_path: Path) -> None:
    code = "import socket, pathlib; socket.socket().close(); pathlib.Path('x').write_text(''); result = None"
    seen, _ = json.loads(run(WATCHED.replace("CODE", code), environment("", tmp_path), cwd=tmp_path))
    assert {event for event, _ in seen} == {"socket.__new__", "open"}


def test_import_and_a_folder_touch_nothing(small: Path, tmp_path: Path) -> None:
    code = EMBED.replace("NAME", repr(str(small)))
    code += "import minibert.hub.repository\nresult = [result, 'huggingface_hub' in sys.modules]"
    assert watched(code, environment("http://hub.invalid", tmp_path / "home")) == [expected(small), False]
    assert not (tmp_path / "home").exists()


OFFLINE = {
    "a commit": ("'org/bert', revision='COMMIT'", {}),
    "local_files_only": ("'org/bert', local_files_only=True", {}),
    "HF_HUB_OFFLINE": ("'org/bert'", {"HF_HUB_OFFLINE": "1"}),
}


@pytest.fixture(scope="module", params=["the client", "us", "us, lazily"])
def filled(
    request: pytest.FixtureRequest, small: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[FakeHub, Path, str]]:
    """A Hub, and a home whose cache was filled by the client alone, or by minibert in one of two ways."""
    home = tmp_path_factory.mktemp("filled")
    lazy = ", lazy=True" if request.param == "us, lazily" else ""
    fill = EMBED.replace("NAME", f"'org/bert'{lazy}")
    if request.param == "the client":
        downloads = (f"hf_hub_download('org/bert', {file!r})\n" for file in files_of(small))
        fill = "from huggingface_hub import hf_hub_download\n" + "".join(downloads)
    with FakeHub() as hub:
        hub.add("org/bert", files_of(small))
        run(fill, environment(hub.endpoint, home, HF_HUB_DISABLE_PROGRESS_BARS="1"))
        yield hub, home, lazy


@pytest.mark.parametrize("how", OFFLINE)
def test_what_is_cached_touches_nothing_and_waits_for_no_http_library(
    filled: tuple[FakeHub, Path, str], small: Path, how: str
) -> None:
    hub, home, lazy = filled
    name, variables = OFFLINE[how]
    hub.forget()
    before = tree(home)
    code = EMBED.replace("NAME", name.replace("COMMIT", commit_of("org/bert")) + lazy)
    code += "result = [result, sorted({'httpx', 'httpx2', 'requests'} & set(sys.modules))]"
    assert watched(code, environment(hub.endpoint, home) | variables) == [expected(small), []]
    assert tree(home) == before
    assert hub.requests == []


class Terminal(io.StringIO):
    isatty = staticmethod(lambda: True)  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("second", "stream", "wanted", "said"),
    [(2, Terminal, True, True), (0, Terminal, True, False), (2, io.StringIO, True, False), (2, Terminal, False, False)],
)
def test_a_bar_for_what_takes_longer_than_a_second_on_a_terminal_only(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: int, stream: type[io.StringIO],
    wanted: bool, said: bool,
) -> None:  # fmt: skip
    """The test sets the bar's clock; `wanted`: the client's switch for bars."""
    ticks, terminal = itertools.count(), stream()
    monkeypatch.setattr("tqdm.std.time", lambda: next(ticks) * second)
    monkeypatch.setitem(progress_bar_states, "_global", wanted)
    with hub_of(monkeypatch, tmp_path / "home", "org/bert", small):
        monkeypatch.setattr(sys, "stderr", terminal)
        minibert.load("org/bert").close()
        monkeypatch.undo()
    assert bool(re.search(r"org/bert at main, model\.safetensors:[^\r]*B/s", terminal.getvalue())) is said
