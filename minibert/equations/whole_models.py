"""The whole of BERT and of GPT-2, one function each: ids in, a number for each word of the vocabulary out.

Read `input_layer`, `blocks` and `heads` first: both models are built from these formulas. `softmax` turns the numbers
(the logits) into probabilities: BERT predicts the word that a mask hides, GPT-2 the next word.

Sources
    Devlin et al. 2018, "BERT" (arXiv:1810.04805): a word for the mask
    Radford et al. 2019, "Language Models are Unsupervised Multitask Learners": GPT-2, the next word
    Press, Wolf 2016, "Using the Output Embedding to Improve Language Models" (arXiv:1608.05859): the word table again
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .activations import gelu
from .blocks import Affine, Block, Linear, bert_encoder, gpt2_blocks, linear
from .heads import tied_logits
from .input_layer import Array, bert_input, gpt2_input, layer_norm


class BertWeights(NamedTuple):
    """All arrays of BERT: three tables and a norm, the blocks, and the head for masked words.

    word (vocab, dim), token_type (types, dim), position (positions, dim). The head has a map `transform` (dim, dim)
    with a norm, and one number for each word, `bias` (vocab,). It uses the table `word` a second time.
    """

    word: Array
    token_type: Array
    position: Array
    norm: Affine
    blocks: Sequence[Block]
    transform: Linear
    transform_norm: Affine
    bias: Array


class Gpt2Weights(NamedTuple):
    """All arrays of GPT-2: wte (vocab, dim), wpe (positions, dim), the blocks and the last norm.

    The head has no array: it uses `wte` a second time, without a bias.
    """

    wte: Array
    wpe: Array
    blocks: Sequence[Block]
    last_norm: Affine


def bert_model(
    input_ids: Array, token_type_ids: Array, attention_mask: Array, weights: BertWeights, heads: int, eps: float = 1e-12
) -> Array:
    """Compute BERT's logits from ids: input layer, blocks, and `LayerNorm(gelu(x @ transform^T + b)) @ word^T + bias`.

    input_ids, token_type_ids and attention_mask (batch, seq) -> (batch, seq, vocab). Only the rows at masks are a
    prediction. A word's logit is large if the token's vector and that word's row point the same way.

    >>> import numpy as np
    >>> table, none, norm = np.array([[0.0, 1.0], [2.0, 5.0]]), np.zeros((1, 2)), Affine(np.ones(2), np.zeros(2))
    >>> transform = Linear(np.eye(2), np.zeros(2))
    >>> weights = BertWeights(table, none, none, norm, [], transform, norm, bias=np.array([0.0, 10.0]))
    >>> bert_model(np.array([[1]]), np.array([[0]]), np.array([[1]]), weights, heads=1).round(3)
    array([[[ 1., 13.]]])
    """
    word, token_type, position, norm, blocks, transform, transform_norm, bias = weights
    x = bert_input(input_ids, token_type_ids, word, token_type, position, *norm, eps)  # (batch, seq, dim)
    x = bert_encoder(x, attention_mask, blocks, heads, eps)
    x = layer_norm(gelu(linear(x, *transform)), *transform_norm, eps)
    return tied_logits(x, word, bias)  # (batch, seq, vocab)


def gpt2_model(input_ids: Array, attention_mask: Array, weights: Gpt2Weights, heads: int, eps: float = 1e-5) -> Array:
    """Compute GPT-2's logits from ids: input layer, blocks with the last norm, and `x @ wte^T`.

    input_ids and attention_mask (batch, seq) -> (batch, seq, vocab). Row t scores the word after token t, so the last
    row is the prediction.

    >>> import numpy as np
    >>> wte, wpe = np.array([[0.0, 1.0], [2.0, 5.0]]), np.zeros((1, 2))
    >>> weights = Gpt2Weights(wte, wpe, [], Affine(np.ones(2), np.zeros(2)))
    >>> gpt2_model(np.array([[1]]), np.array([[1]]), weights, heads=1, eps=0.0)
    array([[[1., 3.]]])
    """
    wte, wpe, blocks, last_norm = weights
    x = gpt2_input(input_ids, wte, wpe)  # (batch, seq, dim)
    x = gpt2_blocks(x, attention_mask, blocks, last_norm, heads, eps)
    return tied_logits(x, wte)  # (batch, seq, vocab)
