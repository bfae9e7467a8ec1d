"""The real Hub: what others have printed of well-known models, in parts of a megabyte and as a whole. pytest -m network

Of BERT the numbers of its own page on the Hub; of GPT-2 the text that picoGPT's page shows, 40 tokens, the likeliest;
of a reranker the scores that sentence-transformers prints in its documentation of `CrossEncoder.rank`.

The authors cannot reach the Hub. So each test runs, marked slow, against a Hub on this machine too, whose files have
the real names, sizes and layouts: the first run there does not fail for a reason of the code or of the tests. A few
numbers are chosen so that the printed ones come out.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from command_line import Patch, Printed
from fake_hub import FakeHub, use
from printed_models import (
    OTHERS,
    RERANKER,
    add_as_on_the_hub,
    write_bert_tokenizer,
    write_gpt2_tokenizer,
    write_layout,
)

import minibert
from minibert.cli import main
from minibert.verify.shipped import SEEDS

network, slow = pytest.mark.network, pytest.mark.slow
MOST = 1_000_000  # bytes of one model's header, rows, small tensors, config and tokenizer
PRINTED = 1e-5  # between two such prints of the same model: 3e-7
FILLED = {
    "Hello I'm a [MASK] model.": {
        "fashion": 0.1073106899857521, "role": 0.08774490654468536, "new": 0.05338378623127937,
        "super": 0.04667217284440994, "fine": 0.027095865458250046,
    },
    "The man worked as a [MASK].": {
        "carpenter": 0.09747550636529922, "waiter": 0.0523831807076931, "barber": 0.04962705448269844,
        "mechanic": 0.03788609802722931, "salesman": 0.037680890411138535,
    },
}  # fmt: skip
BEGUN = "Alan Turing theorized that computers would one day become"
WRITTEN = (
    " the most powerful machines on the planet.\n\nThe computer is a machine that can perform complex calculations, "
    "and it can perform these calculations in a way that is very similar to the human brain."
)
QUERY = "Who wrote 'To Kill a Mockingbird'?"
DOCUMENTS = [
    "'To Kill a Mockingbird' is a novel by Harper Lee published in 1960. It was immediately successful, winning the "
    "Pulitzer Prize, and has become a classic of modern American literature.",
    "The novel 'Moby-Dick' was written by Herman Melville and first published in 1851. It is considered a masterpiece "
    "of American literature and deals with complex themes of obsession, revenge, and the conflict between good and "
    "evil.",
    "Harper Lee, an American novelist widely known for her novel 'To Kill a Mockingbird', was born in 1926 in "
    "Monroeville, Alabama. She received the Pulitzer Prize for Fiction in 1961.",
    "Jane Austen was an English novelist known primarily for her six major novels, which interpret, critique and "
    "comment upon the British landed gentry at the end of the 18th century.",
    "The 'Harry Potter' series, which consists of seven fantasy novels written by British author J.K. Rowling, is "
    "among the most popular and critically acclaimed books of the modern era.",
    "'The Great Gatsby', a novel written by American author F. Scott Fitzgerald, was published in 1925. The story is "
    "set in the Jazz Age and follows the life of millionaire Jay Gatsby and his pursuit of Daisy Buchanan.",
]
SCORES = [
    (0, 10.678577423095703), (2, 9.761673927307129), (1, -3.3099513053894043), (5, -4.898908615112305),
    (4, -5.0829620361328125), (3, -6.478001594543457),
]  # fmt: skip
FAST = 1e-4  # they were computed by kernels of a graphics processor


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: Patch) -> Iterator[FakeHub]:
    """At the end the client's copies go: they have no holes."""
    with FakeHub() as hub:
        use(monkeypatch, hub.endpoint, tmp_path / "home")
        yield hub
        assert not [request.path for name in OTHERS for request in hub.asked(f"/resolve/[^/]+/{name}$")]
    shutil.rmtree(tmp_path)


@network
def test_the_real_hub_gives_the_printed_numbers(tmp_path: Path, monkeypatch: Patch, capsys: Printed) -> None:
    from huggingface_hub import constants

    use(monkeypatch, constants.ENDPOINT, tmp_path)  # an empty cache: a whole file on this machine would prove less
    for more in ([], ["--local-files-only"]):
        assert main(["verify", "--seeds", *more]) == 0, capsys.readouterr().out
    kept = sum(path.stat().st_size for path in (tmp_path / "assets").rglob("*") if path.is_file())
    assert 0 < kept < MOST * len(SEEDS)


@network
@pytest.mark.parametrize("text", FILLED)
def test_words_for_a_mask(text: str) -> None:
    with minibert.load_encoder("bert-base-uncased") as encoder:
        (found,) = encoder.fill(text)
    assert [each["token_str"] for each in found] == list(FILLED[text])
    scores = [each["score"] for each in found]
    np.testing.assert_allclose(scores, list(FILLED[text].values()), rtol=0, atol=PRINTED)


@slow
@pytest.mark.parametrize("text", FILLED)
def test_words_for_a_mask_here(text: str, hub: FakeHub, minilm: Path, tmp_path: Path) -> None:
    """The bias of the head alone makes the logits: those of one text."""
    folder, wanted = tmp_path / "bert", FILLED[text]
    bias = write_layout(folder, "bert-base-uncased")["cls.predictions.bias"]
    ids = minibert.load(minilm).tokenize(" ".join(wanted))["input_ids"][0][1:-1]
    bias[:] = np.log((1 - sum(wanted.values())) / (len(bias) - len(wanted)))
    bias[ids] = np.log(list(wanted.values()))
    add_as_on_the_hub(hub, "bert-base-uncased", write_bert_tokenizer(folder, minilm))
    test_words_for_a_mask(text)


@network
def test_a_text_goes_on() -> None:
    with minibert.load_encoder("gpt2") as encoder:
        written = encoder.complete(BEGUN, tokens=40)
    assert written.rstrip("\n") == BEGUN + WRITTEN


@slow
def test_a_text_goes_on_here(hub: FakeHub, tmp_path: Path) -> None:
    """Each position has a direction of its own, and so has the token that comes next there."""
    folder = tmp_path / "gpt2"
    tensors = write_layout(folder, "gpt2")
    tokenizer = write_gpt2_tokenizer(folder)
    begun, written = (tokenizer.encode(text).ids for text in (BEGUN, WRITTEN + "\n" * 40))
    for place, token in enumerate(written[:40], len(begun) - 1):
        tensors["wpe.weight"][place, place] = 100
        tensors["wte.weight"][token, place] = 1
    tensors["ln_f.weight"][:] = 1
    tokenizer.save(str(folder / "tokenizer.json"))
    add_as_on_the_hub(hub, "gpt2", folder)
    test_a_text_goes_on()


def ranked(wanted: list[tuple[int, float]]) -> None:
    with minibert.load_encoder(RERANKER) as encoder:
        found = encoder.rank(QUERY, DOCUMENTS, return_documents=True)
    assert [each["corpus_id"] for each in found] == [number for number, _ in wanted]
    assert [each["score"] for each in found] == pytest.approx([score for _, score in wanted], abs=FAST)
    assert [each["text"] for each in found] == [DOCUMENTS[number] for number, _ in wanted]


@network
def test_the_printed_scores_of_six_documents() -> None:
    ranked(SCORES)


@slow
def test_the_printed_scores_here(hub: FakeHub, minilm: Path, tmp_path: Path) -> None:
    """All have the first one's score, and stay in their order."""
    folder, score = tmp_path / "reranker", SCORES[0][1]
    write_layout(folder, RERANKER)["classifier.bias"][:] = score
    add_as_on_the_hub(hub, RERANKER, write_bert_tokenizer(folder, minilm))
    ranked([(number, score) for number in range(6)])


@slow
def test_the_page_s_code_writes_the_folder_of_real_values(hub: FakeHub, tmp_path: Path, monkeypatch: Patch) -> None:
    table = write_layout(tmp_path / "bert", "bert-base-uncased")["bert.embeddings.position_embeddings.weight"]
    table[:] = np.random.default_rng(0).standard_normal(table.shape)
    write_layout(tmp_path / "gpt2", "gpt2")
    write_gpt2_tokenizer(tmp_path / "gpt2")
    for model, folder in (("bert-base-uncased", "bert"), ("gpt2", "gpt2")):
        add_as_on_the_hub(hub, model, tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[2] / "scripts" / "reference" / "README.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(code, page.name, "exec"), {})
    assert np.array_equal(np.load("real-values/bert_base_uncased_position_embeddings.npy"), table)
    for name in ("vocab.json", "merges.txt"):
        written = tmp_path / "real-values" / "tokenizers" / f"gpt2_{name}"
        assert written.read_bytes() == (tmp_path / "gpt2" / name).read_bytes()


@network
@pytest.mark.reference
def test_the_whole_of_t5_small_beside_transformers() -> None:
    assert main(["verify", "t5-small"]) == 0


@slow
@pytest.mark.reference
def test_the_whole_of_t5_small_here(hub: FakeHub, tmp_path: Path) -> None:
    tensors = write_layout(tmp_path / "t5", "t5-small")
    for name, tensor in tensors.items():
        generator = np.random.default_rng(len(name))
        tensor[:] = 1 if "norm" in name else 0.05 * generator.standard_normal(tensor.shape, np.float32)
    add_as_on_the_hub(hub, "t5-small", tmp_path / "t5")
    test_the_whole_of_t5_small_beside_transformers()
