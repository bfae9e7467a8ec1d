"""bge-m3's weights and vectors of tokens beside its authors' formulas, written in torch, on files of torch.save."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from many_texts import many_texts
from needed import need_sentence_transformers
from tokenizer_folders import BASES, vocabulary, write_tokenizer

import minibert

pytestmark = pytest.mark.reference

CLOSE = 1e-5  # of max(1, |weight|), and of vectors of length 1; measured: 2.4e-6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_sentence_transformers()
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    parts = tmp_path_factory.mktemp("parts")
    write_tokenizer(parts, "XLMRobertaTokenizer", {"tokenizer_config.json": {"model_max_length": 60}})
    torch.manual_seed(0)
    config = transformers.XLMRobertaConfig(
        vocab_size=len(vocabulary(BASES["XLMRobertaTokenizer"])), hidden_size=16, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=24, max_position_embeddings=66, pad_token_id=1, type_vocab_size=1,
        initializer_range=0.3,
    )  # fmt: skip
    transformers.XLMRobertaModel(config).save_pretrained(parts)
    chain = [Transformer(str(parts)), Pooling(16, "cls"), Normalize()]
    made = tmp_path_factory.mktemp("bge") / "m3"
    SentenceTransformer(modules=chain, device="cpu").save(str(made), create_model_card=False)
    for name, out in (("sparse_linear.pt", 1), ("colbert_linear.pt", 16)):
        linear = torch.nn.Linear(16, out)
        linear.bias.data.add_(1)  # so that most tokens weigh something
        torch.save(linear.half().state_dict(), made / name)
    return made


def test_as_the_authors_compute_them(folder: Path) -> None:
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    sparse, colbert = (
        torch.load(folder / f"{name}_linear.pt", weights_only=True, map_location="cpu")
        for name in ("sparse", "colbert")
    )
    texts = ["", "we lived above the clouds", "the the <mask> \u4e2d\u6587 \U0001f989", *many_texts(40)]
    ours = minibert.load_encoder(folder)
    batch = tokenizer(texts, padding=True, truncation=True, max_length=60, return_tensors="pt")
    with torch.no_grad():
        x = model(**batch).last_hidden_state
        weights = torch.relu(x @ sparse["weight"].float().T + sparse["bias"].float())[..., 0]
        vectors = x[:, 1:] @ colbert["weight"].float().T + colbert["bias"].float()
        vectors = torch.nn.functional.normalize(vectors * batch["attention_mask"][:, 1:, None].float(), dim=-1)
    unused = {tokenizer.cls_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id}
    assert unused == {0, 1, 2, 3}
    found, tokens = ours.encode_sparse(texts), ours.encode_token_vectors(texts)
    for i, (vector, rows) in enumerate(zip(found, tokens, strict=True)):
        want: dict[int, float] = {}
        for token, weight in zip(batch["input_ids"][i].tolist(), weights[i].tolist(), strict=True):
            if weight > want.get(token, 0) and token not in unused:
                want[token] = weight
        near = {token for token, weight in want.items() if weight <= CLOSE}
        assert set(vector.ids.tolist()) - near == set(want) - near
        for token, weight in zip(vector.ids.tolist(), vector.weights.tolist(), strict=True):
            assert abs(weight - want.get(token, 0)) <= CLOSE * max(1, weight)
        count = int(batch["attention_mask"][i].sum()) - 1
        assert rows.shape == (count, 16) and np.abs(rows - vectors[i, :count].numpy()).max(initial=0) <= CLOSE
    assert max(len(each.ids) for each in found) > 5 and max(map(len, tokens)) == 59
    theirs = SentenceTransformer(str(folder), device="cpu").encode(texts)
    assert np.abs(ours.encode(texts) - theirs).max() <= CLOSE
