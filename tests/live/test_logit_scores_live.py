"""Rerankers that answer yes beside sentence-transformers, and a chat template's texts beside `apply_chat_template`."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import change_json, write_byte_level
from many_texts import many_texts
from needed import need_sentence_transformers

import minibert
from minibert.files.chat_template import ChatTemplate
from minibert.models.heads.logit_scores import writer

pytestmark = pytest.mark.reference

SCORES = 1e-5  # of max(1, |score|); measured: 4.3e-6
PROMPT = "Given a web search query, judge whether the document answers it"
# the form of Qwen3-Reranker's own: instruction, query and document in the user's message, an empty thought
QWEN = """{%- set instruct = messages | selectattr("role", "eq", "system") | map(attribute="content") | first -%}
<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. \
Note that the answer can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: {{ instruct | default("Given a web search query, retrieve relevant passages", true) }}
<Query>: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}
<Document>: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}<|im_end|>
<|im_start|>assistant
<think>

</think>

"""
CHATML = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""
PARTS = """{{ bos_token }}{% set ns = namespace(n=0, seen=[]) %}
    {%- for message in messages -%}
  {% set ns.n = ns.n + 1 %}
  {% generation %}[{{ ns.n }}] {{ message.content[0]['text'] | trim }}{% endgeneration %}

  {% if loop.last %}{% break %}{% endif %}
{% endfor %}
{{ {"é": "<b>", "n": ns.n} | tojson(indent=1) }} {{ messages[0].role.upper() ~ "\\t" }}{{ dict(a=1).a }}
{{- eos_token }}"""
TEMPLATES = {"qwen": QWEN, "chatml": CHATML, "parts": PARTS}
ODD = ["", " ", "{{ 1 }}", "{% raw %}", "<|im_end|>", "a\nb\r\n", "é🦉", "<|endoftext|>x", "  two  ", "'\"\\"]


def model_of(folder: Path, name: str, template: str = "", seed: int = 0) -> Path:
    """A seeded causal model whose tokens have yes and no."""
    need_sentence_transformers()
    import torch
    import transformers

    sizes = dict(
        vocab_size=265, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=4,
        intermediate_size=24, max_position_embeddings=400, bos_token_id=None, eos_token_id=256,
    )  # fmt: skip
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(name, **sizes, initializer_range=0.3)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    write_byte_level(folder)
    rules = json.loads(transformers.GPT2Tokenizer.from_pretrained(folder).backend_tokenizer.to_str())
    flags = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    words = ("yes", "no", "<|im_start|>", "<|im_end|>")
    rules["added_tokens"] += [
        {"id": 261 + i, "content": word, **flags, "special": "|" in word} for i, word in enumerate(words)
    ]
    for older in ("vocab.json", "merges.txt"):
        (folder / older).unlink()
    (folder / "tokenizer.json").write_text(json.dumps(rules), encoding="utf-8")
    named = {"pad_token": "<|endoftext|>", "eos_token": "<|im_end|>", "bos_token": "<|im_start|>"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 300, **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    if template:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


def pairs_of(count: int) -> list[tuple[str, str]]:
    texts = [*ODD, *many_texts(count), "long " * 200]
    chosen = random.Random(3)
    return [(chosen.choice(texts), chosen.choice(texts)) for _ in range(count)] + [("a " * 400, "b"), ("b", "a " * 400)]


def off(found: Any, want: Any) -> float:
    return float((np.abs(found - want) / np.maximum(1, np.abs(want))).max())


@pytest.mark.parametrize("template", TEMPLATES)
def test_texts_are_those_of_apply_chat_template(tmp_path: Path, template: str) -> None:
    import transformers

    folder = model_of(tmp_path / "model", "qwen3", TEMPLATES[template])
    theirs, ours = transformers.AutoTokenizer.from_pretrained(folder), minibert.load_encoder(folder)
    own, named = ours.sentence_config.logit_score, ours.sentence_tokenizer.named
    assert own is not None
    for prompt in ("", PROMPT):
        write = writer(own, named, prompt, None)
        assert write is not None
        for query, document in pairs_of(40):
            parts = {"system": prompt, "query": query, "document": document}
            messages = [
                {"role": role, "content": [{"type": "text", "text": text}] if template == "parts" else text}
                for role, text in parts.items()
                if text or role != "system"
            ]
            assert write(query, document) == theirs.apply_chat_template(messages, tokenize=False)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}", "{{ messages.clear() }}", "{{ namespace(__x=1) }}", "{{ dict.mro() }}",
        "{{ raise_exception('x') }}", "{% set n = namespace() %}{% set n._a = 2 %}", "{{ namespace.__init__ }}",
        "{{ lipsum.__globals__ }}", "{{ joiner()._used }}", "{{ (1).real.bit_length.__self__ }}",
        "{{ messages[0] | attr('__class__') }}", "{{ '{0.__class__}'.format(1) }}", "{{ nothing.more }}",
        "{{ messages | tojson(indent=2, sort_keys=true) }}", "{{ '%s' | format(1) }}", "{{ namespace(self=1).self }}",
        "{{ dict.fromkeys(['a'], 1) }}", "{{ strftime_now('%Y') }}", "{{ tools is none and documents is none }}",
        "{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
        "{{ add_generation_prompt }}{{ nothing }}", "{{ range(100001) | length }}",
    ],
)  # fmt: skip
def test_programs_give_what_transformers_gives_or_end_as_there(source: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [{"role": "query", "content": "<é>"}]

    try:
        want = render_jinja_template([messages], chat_template=source)[0][0]
    except Exception as error:  # noqa: BLE001  a program may raise anything
        with pytest.raises(minibert.TokenizerError, match=rf"\({type(error).__name__}: "):
            ChatTemplate(source, "here").render(messages, {})
    else:
        assert ChatTemplate(source, "here").render(messages, {}) == want


@pytest.mark.parametrize("template", ["", *TEMPLATES])
@pytest.mark.parametrize("name", ["qwen3", "qwen2", "llama", "mistral"])
def test_scores_are_those_of_the_cross_encoder(tmp_path: Path, name: str, template: str) -> None:
    """A bare folder, then one that the library saves; one text at a time and all at once; a prompt; cut texts."""
    folder = model_of(tmp_path / "model", name, TEMPLATES.get(template, ""), seed=len(name + template))
    from sentence_transformers import CrossEncoder

    pairs = [pair for pair in pairs_of(24) if template or any(pair)]
    theirs, ours = CrossEncoder(str(folder), device="cpu"), minibert.load_encoder(folder)
    theirs.save(str(tmp_path / "saved"), create_model_card=False)
    saved = minibert.load_encoder(tmp_path / "saved")
    assert saved.sentence_config.logit_score is not None and ours.max_seq_length == saved.max_seq_length == 300
    for options in ({}, {"prompt": PROMPT}):
        want = theirs.predict(pairs, **options)
        assert np.ptp(want) > 0.05
        for encoder in (ours, saved):
            assert off(encoder.predict(pairs, **options), want) <= SCORES
        alone = np.array([ours.predict(pair, **options) for pair in pairs[:10]])
        assert off(alone, want[:10]) <= SCORES
    import torch

    raw = theirs.predict(pairs, activation_fn=torch.nn.Identity())
    assert off(saved.predict(pairs, activation_fn=lambda x: x), raw) <= SCORES and np.ptp(raw) > 0.2


def test_one_word_alone_and_the_folder_s_activation(tmp_path: Path) -> None:
    folder = model_of(tmp_path / "model", "qwen3", QWEN)
    import torch
    from sentence_transformers import CrossEncoder
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.cross_encoder.modules import LogitScore

    pairs = pairs_of(20)
    for words in ((261,), (261, 262), (5, 9)):
        for activation in (torch.nn.Identity(), torch.nn.Sigmoid()):
            chain = [Transformer(str(folder), transformer_task="text-generation"), LogitScore(*words)]
            theirs = CrossEncoder(modules=chain, device="cpu", activation_fn=activation)
            saved = tmp_path / f"{words}{type(activation).__name__}"
            theirs.save(str(saved), create_model_card=False)
            assert off(minibert.load_encoder(saved).predict(pairs), theirs.predict(pairs)) <= SCORES


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("longest", [12, 60, 90, 130])
def test_cut_texts_get_their_ending_back(tmp_path: Path, longest: int, side: str) -> None:
    """Also where there is hardly room for the ending, and in a tokenizer that cuts at the left."""
    folder = model_of(tmp_path / "model", "qwen3", QWEN)
    change_json(folder / "tokenizer_config.json", model_max_length=longest, truncation_side=side)
    from sentence_transformers import CrossEncoder

    pairs = pairs_of(20)
    theirs, ours = CrossEncoder(str(folder), device="cpu"), minibert.load_encoder(folder)
    assert off(ours.predict(pairs), theirs.predict(pairs)) <= SCORES


def test_a_template_that_leaves_out_the_pair_is_refused_there_too(tmp_path: Path) -> None:
    template = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}x"
    folder = model_of(tmp_path / "model", "qwen3", template)
    from sentence_transformers import CrossEncoder

    with pytest.raises(ValueError, match="cannot carry a 'query'/'document' pair"):
        CrossEncoder(str(folder), device="cpu").predict([("a", "b")])
    with pytest.raises(minibert.CheckpointError, match="leaves out messages of the role 'query' and 'document'"):
        minibert.load_encoder(folder).predict([("a", "b")])
