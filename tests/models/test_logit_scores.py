"""Scores of pairs by a word's logit: the chat template, texts in its place, what a cut text keeps, what is refused.

The numbers are held by test_uses.py, the template's texts beside transformers by tests/live/test_logit_scores_live.py.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from needed import absent, missing
from reference_files import REFERENCE, changed, opened

import minibert
from minibert.files.chat_template import ChatTemplate
from minibert.files.tokenizer import Tokenizer

CHAT, PLAIN, BARE = "uses-answers", "uses-answers-plain", "uses-answers-bare"
PAIRS = [("we", "the clouds"), ("", "we lived above"), ("the", ""), ("lived " * 50, "we"), ("we", "lived " * 50)]
TEXTS = (
    "<s>Is it about clouds? \n<Query>: ",
    "\n<Document>: ",
    "\n\n<a><|endoftext|>no thought, calm\n",
)  # what the template of CHAT writes with its default prompt
NEIGHBOURS = 4e-6  # how far a score moves with the other pairs of a call; measured: 9.6e-7


def need_jinja2() -> None:
    if absent("jinja2"):
        missing("jinja2 not installed; it is in the extra `test`")


@pytest.fixture
def no_jinja2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)


def test_the_texts_of_a_template_do_what_the_template_does() -> None:
    """Also for a text that is cut: else one without the tokens behind the pair would pass."""
    need_jinja2()
    encoder = opened(CHAT)
    want, found = encoder.predict(PAIRS), encoder.predict(PAIRS, template=TEXTS)
    assert np.abs(found - want).max() <= NEIGHBOURS and np.ptp(want) > 0.1
    assert np.abs(encoder.predict(PAIRS, template=("", " ", "")) - want).max() > 0.01
    for each, other in zip(
        encoder.rank("we", ["a", "b c"]), encoder.rank("we", ["a", "b c"], template=TEXTS), strict=True
    ):
        assert each["corpus_id"] == other["corpus_id"] and abs(each["score"] - other["score"]) <= NEIGHBOURS


@pytest.mark.usefixtures("no_jinja2")
def test_without_jinja2_the_error_says_both_ways_out() -> None:
    said = r"jinja2 is not installed: pip install .*'\.\[chat\]'.*; or pass .*template=\(before, between, after\)"
    for call in (lambda encoder: encoder.predict(PAIRS), lambda encoder: encoder.rank("we", [])):
        with pytest.raises(ImportError, match=said):
            call(opened(CHAT))
    assert opened(CHAT).predict(PAIRS, template=TEXTS).shape == (5,)  # the way out that the error names
    assert opened(PLAIN).predict(PAIRS).shape == (5,)  # no template in the folder: nothing to install


def test_an_old_jinja2_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    need_jinja2()
    monkeypatch.setattr("jinja2.__version__", "3.1.5")
    with pytest.raises(ImportError, match=r"jinja2 3\.1\.5 has known ways out of its sandbox"):
        opened(CHAT).predict(PAIRS)


def test_a_cut_text_keeps_what_stands_behind_the_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens themselves: all but the last of the text, then the ending; the reference writes over as many."""
    seen: list[list[int]] = []
    split = Tokenizer.pieces_of

    def noted(self: Tokenizer, texts: Any) -> Any:
        found = split(self, texts)
        seen.extend(found)
        return found

    encoder = opened(CHAT)
    monkeypatch.setattr(Tokenizer, "pieces_of", noted)
    encoder.predict(PAIRS[3], template=TEXTS)
    whole, ending = seen[0], encoder.sentence_tokenizer.pieces(TEXTS[2])
    from minibert.models.heads.logit_scores import encoded

    for longest in (200, 140, 30, 8, 1):
        (found,) = encoded(
            [PAIRS[3]], lambda query, document: f"{TEXTS[0]}{query}{TEXTS[1]}{document}{TEXTS[2]}",
            encoder.sentence_tokenizer, longest, True,
        )  # fmt: skip
        keep = max(0, longest - len(ending))
        assert found.input_ids == whole[:keep] + ending[-(longest - keep) :]
        assert found.truncated == len(whole) - longest


@pytest.mark.parametrize("template", ["abc", ("a", "b"), ("a", "b", 3), {"a": 1}, ("a", "b", "c", "d")])
def test_another_template_is_refused(template: Any) -> None:
    with pytest.raises(TypeError, match=r"template must be three texts, \(before, between, after\), found"):
        opened(CHAT).predict(PAIRS, template=template)


def test_a_template_and_a_prompt_exclude_each_other() -> None:
    for option in ({"prompt": ""}, {"prompt_name": "web"}):
        with pytest.raises(ValueError, match="template says what stands before the query; leave prompt"):
            opened(CHAT).predict(PAIRS, template=TEXTS, **option)
    with pytest.raises(ValueError, match="template is for a causal model"):
        opened("uses-reranker").predict(PAIRS, template=TEXTS)


def with_chat(tmp_path: Path, name: str, template: str) -> minibert.Encoder:
    shutil.rmtree(tmp_path / "chat", ignore_errors=True)
    folder = shutil.copytree(REFERENCE / name, tmp_path / "chat")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return minibert.load_encoder(folder)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% for message in messages %}", "TemplateSyntaxError"),
        ("{{ raise_exception('no such role') }}", "TemplateError: no such role"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{% set n = namespace() %}{% set n.__x__ = 1 %}", "SecurityError"),
        ("{{ namespace(_x=1) }}", "SecurityError"),
        ("{{ cycler.__init__.__globals__.os.system('true') }}", "SecurityError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ range(999999999) | list }}", "OverflowError"),
        ("{{ messages[0].content.text.more }}", "UndefinedError"),
    ],
)
def test_a_template_that_breaks_off_or_reaches_out_is_an_error(tmp_path: Path, template: str, said: str) -> None:
    need_jinja2()
    encoder = with_chat(tmp_path, CHAT, template)
    with pytest.raises(
        minibert.MinibertError, match=f"chat_template.jinja: the chat template cannot be followed.*{said}"
    ):
        encoder.predict(PAIRS)


def test_a_template_that_leaves_out_the_pair_is_refused(tmp_path: Path) -> None:
    need_jinja2()
    user = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    query = "{% for m in messages %}{% if m.role == 'query' %}{{ m.content }}{% endif %}{% endfor %}"
    for template, roles in ((user, "'query' and 'document'"), (query, "'document'")):
        with pytest.raises(
            minibert.CheckpointError, match=f"leaves out messages of the role {roles}, so that all pairs"
        ):
            with_chat(tmp_path, CHAT, template).predict(PAIRS)


def test_where_the_template_stands(tmp_path: Path) -> None:
    need_jinja2()
    folder = shutil.copytree(REFERENCE / CHAT, tmp_path / "model")
    text = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(minibert.CheckpointError, match="go through a chat template, but the folder has none"):
        minibert.load_encoder(folder).predict(PAIRS)
    want = opened(CHAT).predict(PAIRS)
    for said in (text, [{"name": "tool_use", "template": "x"}, {"name": "default", "template": text}]):
        encoder = changed(tmp_path / "in", CHAT, "tokenizer_config.json", {"chat_template": said})
        (tmp_path / "in" / "model" / "chat_template.jinja").unlink()
        assert np.array_equal(encoder.predict(PAIRS), want)
    for said in (3, [{"name": "tool_use", "template": "x"}]):
        encoder = changed(tmp_path / "in", CHAT, "tokenizer_config.json", {"chat_template": said})
        (tmp_path / "in" / "model" / "chat_template.jinja").unlink()
        with pytest.raises(
            minibert.TokenizerError, match="'chat_template' must be a template, or a list with one named"
        ):
            encoder.predict(PAIRS)


def test_the_words_of_a_bare_model_must_be_there(tmp_path: Path) -> None:
    def without(rules: dict[str, Any]) -> dict[str, Any]:
        return rules | {"added_tokens": [each for each in rules["added_tokens"] if each["content"] != "no"]}

    with pytest.raises(
        minibert.CheckpointError, match="the logit of 'no', but the model has 263 words and not that one"
    ):
        changed(tmp_path, BARE, "tokenizer.json", without).predict(PAIRS, template=TEXTS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"true_token_id": None}, "'true_token_id' must be an id, 'false_token_id' an id or null"),
        ({"true_token_id": "yes"}, "'true_token_id' must be an id"),
        ({"false_token_id": -1}, "'false_token_id' an id or null"),
        ({"false_token_id": True}, "'false_token_id' an id or null"),
        ({"module_input_name": "logits"}, "LogitScore reads 'logits'"),
        ({"bias": 1}, "config.json has 'bias', not known here"),
    ],
)
def test_another_logit_score_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(minibert.CheckpointError, match=said):
        changed(tmp_path, CHAT, "1_LogitScore/config.json", change)


def test_a_word_beyond_the_vocabulary_is_refused(tmp_path: Path) -> None:
    encoder = changed(tmp_path, PLAIN, "1_LogitScore/config.json", {"false_token_id": 261})
    with pytest.raises(minibert.CheckpointError, match="the logit of 261, but the model has 261 words"):
        encoder.predict(PAIRS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"transformer_task": "sequence-classification"},
            "'transformer_task' is 'sequence-classification'.*LogitScore",
        ),
        ({"processing_kwargs": {"text": {"max_length": 9}}}, "'processing_kwargs' are .*max_length"),
        ({"processing_kwargs": {"chat_template": {"max_length": 9}}}, "'processing_kwargs' are .*max_length"),
        ({"processing_kwargs": {"chat_template": {"continue_final_message": True}}}, "continue_final_message': True"),
        ({"processing_kwargs": {"chat_template": {"chat_template": "x"}}}, "'processing_kwargs' are .*'x'"),
        ({"processing_kwargs": {"chat_template": {"restore_suffix": 1}}}, "'restore_suffix' must be true or false"),
        ({"modality_config": {"message": {"method": "x"}}}, "'modality_config' has the message"),
        ({"modality_config": {"image": {}}}, "'modality_config' is"),
    ],
)
def test_another_setting_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(minibert.CheckpointError, match=said):
        changed(tmp_path, CHAT, "sentence_bert_config.json", change)


def test_the_ending_comes_back_only_where_the_folder_says_so(tmp_path: Path) -> None:
    need_jinja2()
    arguments = {"add_generation_prompt": True, "mood": "calm", "restore_suffix": False}
    encoder = changed(tmp_path, CHAT, "sentence_bert_config.json", {"processing_kwargs": {"chat_template": arguments}})
    found, want = encoder.predict(PAIRS), opened(CHAT).predict(PAIRS)
    assert np.abs(found[:3] - want[:3]).max() <= NEIGHBOURS and np.abs(found[3:] - want[3:]).min() > 1e-3


def test_blocks_around_what_a_model_says_leave_the_text_as_it_is() -> None:
    need_jinja2()
    source = "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{% generation %}{{ m | tojson }}\n"
    chat = ChatTemplate(source + "{% endgeneration %}{% endfor %}{{ x.y }}{{ dict(a=1).a }}", "here")
    assert chat.render([{"role": "é", "content": "<"}] * 2, {"x": {"y": 1}}) == '{"role": "é", "content": "<"}\n11'
