"""Which rows a training step scores: the likely ones for sure, of the others a fair sample."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import tiny

from mlx_skipspec.convert.head_rows import head_rows, most_frequent
from mlx_skipspec.convert.unroll_mlx import divergence

VOCAB = 500


def test_likely_and_frequent_rows_are_there_and_stand_for_themselves_the_rest_for_its_share() -> None:
    top, frequent = np.array([[3, 9], [400, 3]]), np.array([1, 2, 9])
    ids, weight = head_rows(top, frequent, VOCAB, 50, (7,))
    assert len(set(ids.tolist())) == len(ids) == 5 + 50 + 0
    assert {1, 2, 3, 9, 400} == set(ids[weight == 0].tolist())
    np.testing.assert_allclose(np.exp(weight).sum(), VOCAB, rtol=1e-6)


def test_the_same_seed_draws_the_same_rows_and_another_seed_others() -> None:
    def draw(seed: int) -> list[int]:
        return head_rows(np.array([5]), np.array([6]), VOCAB, 40, (0, seed))[0].tolist()

    assert draw(1) == draw(1) != draw(2)


def test_a_small_vocabulary_is_scored_whole() -> None:
    ids, weight = head_rows(np.array([5]), np.array([6]), 30, 40, (0,))
    assert ids.tolist() == list(range(30))
    assert not weight.any()


def test_the_loss_over_some_rows_is_the_whole_loss_but_for_a_small_bias() -> None:
    """On distributions with a long tail; averaged over draws, within one part in a hundred."""
    random = np.random.default_rng(0)
    teacher = random.normal(size=(64, VOCAB)) * 3
    student = teacher + random.normal(size=teacher.shape)
    whole, _ = divergence(mx.array(student), mx.array(teacher))
    top = np.argsort(-teacher, axis=-1)[:, :4]
    means = []
    for seed in range(40):
        ids, weight = head_rows(top, np.arange(20), VOCAB, 120, (seed,))
        loss, _ = divergence(mx.array(student[:, ids]), mx.array(teacher[:, ids]), mx.array(weight))
        means.append(loss.mean().item())
    assert abs(np.mean(means) / whole.mean().item() - 1) < 0.01


def test_most_frequent_ids_come_first() -> None:
    assert most_frequent(np.array([[4, 4, 2], [2, 4, 1]]), VOCAB, 3).tolist() == [4, 2, 1]


@pytest.mark.parametrize("bits", [None, 4, 8])
@pytest.mark.parametrize("tied", [True, False])
def test_logits_of_some_rows_are_those_of_all_at_these_rows(tied: bool, bits: int | None) -> None:
    target = tiny.target(tie_word_embeddings=tied)
    if bits:
        nn.quantize(target.model, 32, bits)
    hidden = mx.random.normal((2, 3, target.hidden_size), key=mx.random.key(1))
    rows = mx.array([5, 0, 77])
    whole, some = target.logits(hidden), target.logits(hidden, rows)
    assert some.shape == (2, 3, 3)
    assert mx.abs(whole[..., rows] - some).max().item() < 1e-4
