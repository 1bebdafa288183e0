"""The laws of draft heads: one may miss, none may lie, and what it finds it draws as the target will."""

from __future__ import annotations

from functools import cache

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import tiny
from mlx.utils import tree_map
from small_heads import KINDS, small_finder, small_head

from mlx_skipspec.heads import DenseHead, Shortlist, Subset
from mlx_skipspec.heads.subset import RECENT
from mlx_skipspec.models import block
from mlx_skipspec.sampling import GREEDY, Sampler
from mlx_skipspec.target import Target

MODELS = {
    "tied": (True, None),
    "untied": (False, None),
    "tied, 4 bits": (True, 4),
    "untied, 8 bits": (False, 8),
    "untied, bf16": (False, 16),
}
SAMPLED = Sampler(temperature=0.9, top_p=0.9, seed=5)
TEXT = tiny.prompt(0)


@cache
def target(name: str = "tied") -> Target:
    tied, bits = MODELS[name]
    made = tiny.target(tie_word_embeddings=tied)
    if bits == 16:
        made.model.update(tree_map(lambda w: w.astype(mx.bfloat16), made.model.parameters()))
    elif bits:
        nn.quantize(made.model, 32, bits)
    return made


def hidden(count: int = 24) -> list[mx.array]:
    """Last-layer states a model of these sizes could have."""
    ids = mx.random.randint(3, tiny.VOCAB, (count,), key=mx.random.key(7))
    states = target().run(target().embed(ids), target().layers, target().make_kv())
    return [states[:, i : i + 1] for i in range(count)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", MODELS)
def test_its_token_is_the_best_of_the_rows_it_looked_at(kind: str, model: str) -> None:
    finder = small_finder(kind, target(model))
    head = Shortlist(target(model), finder)
    head.read(TEXT)
    for h in hidden():
        found = set(finder.find(target(model).normed(h)).tolist())
        assert found <= set(range(tiny.VOCAB))
        logits = target(model).logits(h)[0, 0]
        token = head(h, 3)[0]
        assert (token.shape, token.dtype) == ((1,), mx.uint32)
        assert token.item() in found
        rounding = 0.02 if "bf16" in model else 1e-5
        best = max(logits[row].item() for row in found)
        assert logits[token.item()].item() >= best - rounding * abs(best)


@pytest.mark.parametrize("kind", KINDS)
def test_it_looks_at_few_rows_and_often_finds_the_best_of_all(kind: str) -> None:
    finder, dense = small_finder(kind, target()), DenseHead(target().logits)
    head = Shortlist(target(), finder)
    states = hidden(96)
    found = [set(finder.find(target().normed(h)).tolist()) for h in states]
    assert max(map(len, found)) <= tiny.VOCAB / 2
    hits = np.mean([head(h, 0)[0].item() == dense(h, 0)[0].item() for h in states])
    assert hits >= {"clusters": 0.5, "subset": 0.2, "ann": 0.9}[kind]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sampler", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_where_the_dense_heads_token_is_among_its_rows_it_gives_that_token(kind: str, sampler: Sampler) -> None:
    """At temperature > 0 too: the noise of a token is the same for both. (Filters see only the rows it looked at.)"""
    sampler = Sampler(temperature=sampler.temperature, seed=sampler.seed)
    finder, dense = small_finder(kind, target()), DenseHead(target().logits, sampler)
    head = Shortlist(target(), finder, sampler)
    seen = 0
    for position, h in enumerate(hidden(96)):
        wanted = dense(h, position)[0].item()
        if wanted in finder.find(target().normed(h)).tolist():
            assert head(h, position)[0].item() == wanted
            seen += 1
    assert seen > 10


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_state_position_and_seed_give_the_same_token(kind: str) -> None:
    one, other = (small_head(kind, target(), SAMPLED) for _ in range(2))
    for position, h in enumerate(hidden()):
        assert one(h, position)[0].item() == one(h, position)[0].item() == other(h, position)[0].item()


def test_a_head_of_all_rows_is_the_dense_head() -> None:
    for sampler in (GREEDY, SAMPLED):
        head = Shortlist(target(), Subset(np.arange(tiny.VOCAB), tiny.VOCAB), sampler)
        dense = DenseHead(target().logits, sampler)
        assert [head(h, 9)[0].item() for h in hidden()] == [dense(h, 9)[0].item() for h in hidden()]


@pytest.mark.parametrize("piece_bytes", [1, 600, 1 << 19])
def test_rows_gathered_in_pieces_give_the_logits_of_all_at_once(
    monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    monkeypatch.setattr(block, "PIECE_BYTES", piece_bytes)
    h, rows = hidden(1)[0], mx.array([5, 0, 77, 5, 3])
    assert mx.allclose(target().logits(h, rows), target().logits(h)[..., rows], atol=1e-4).item()


class Named:
    """Finds these rows."""

    def __init__(self, *rows: int) -> None:
        self.rows = mx.array(rows)

    def read(self, context: object) -> None: ...

    def find(self, normed: mx.array) -> mx.array:
        return self.rows


class Equal:
    """A target with equal logits."""

    vocab_size = 9

    def normed(self, h: mx.array) -> mx.array:
        return h

    def score(self, normed: mx.array, rows: mx.array) -> mx.array:
        return mx.zeros((1, 1, rows.size))


def test_ties_go_to_the_smallest_id_and_a_row_named_twice_counts_once() -> None:
    nothing = mx.zeros((1, 1, 4))
    assert Shortlist(Equal(), Named(7, 3, 5, 3))(nothing, 0)[0].item() == 3
    once, twice = Named(3, 5), Named(3, 5, 5, 5, 5, 5, 5, 5)
    drawn = [
        [Shortlist(Equal(), named, Sampler(temperature=1.0))(nothing, position)[0].item() for position in range(60)]
        for named in (once, twice)
    ]
    assert drawn[0] == drawn[1]
    assert set(drawn[0]) == {3, 5}


@pytest.mark.parametrize("kind", ["clusters", "subset"])
def test_on_the_device_it_stays_lazy(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of drafts is built without the host waiting for a token; an index, which lives on the host, can't."""
    head = small_head(kind, target(), SAMPLED)
    h = hidden(1)[0]
    mx.eval(h)

    def waited(*args: object) -> None:
        raise AssertionError("the host waited")

    with monkeypatch.context() as patch:
        patch.setattr(mx, "eval", waited)
        patch.setattr(np, "array", waited)
        token = head(h, 4)[0]
    assert 0 <= token.item() < tiny.VOCAB


def test_a_subset_has_the_rows_of_the_text_so_far_and_forgets_those_of_another() -> None:
    finder = Subset(np.array([1, 2]), tiny.VOCAB)
    finder.read([5, 1, 9, 5])
    assert sorted(finder.find(mx.zeros(1)).tolist()) == [1, 2, 5, 9]
    finder.read([7])
    assert sorted(finder.find(mx.zeros(1)).tolist()) == [1, 2, 7]
    finder.read([8] + [2] * RECENT)
    assert sorted(finder.find(mx.zeros(1)).tolist()) == [1, 2]
