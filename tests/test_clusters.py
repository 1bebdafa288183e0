"""Clusters of a head's rows: of equal size, near their centres, and calibrated."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlx_skipspec.convert import assignment
from mlx_skipspec.convert import clusters as clustering
from mlx_skipspec.convert.assignment import admitted, first_with_room
from mlx_skipspec.convert.clusters import EqualClusters

WIDTH = 16


def groups(count: int, size: int, noise: float = 0.05, seed: int = 0) -> np.ndarray:
    """Rows around `count` centres, `size` each, shuffled."""
    random = np.random.default_rng(seed)
    rows = np.repeat(random.normal(size=(count, WIDTH)), size, axis=0)
    return random.permutation(rows + noise * random.normal(size=rows.shape)).astype(np.float32)


def made(rows: np.ndarray, size: int, states: np.ndarray | None = None) -> EqualClusters:
    if states is None:
        states = np.random.default_rng(1).normal(size=(300, WIDTH)).astype(np.float32)
    found = EqualClusters(lambda ids: mx.array(rows)[mx.array(ids)], len(rows), states, size)
    found.fit()
    return found


@pytest.mark.parametrize(("count", "size"), [(64, 8), (65, 8), (71, 8), (8, 8), (5, 8), (40, 1)])
def test_every_row_has_one_place_and_no_cluster_more_than_its_size(count: int, size: int) -> None:
    members = made(groups(count, 1), size).members
    assert members.shape == (-(-count // size), size)
    assert set(members.ravel().tolist()) == set(range(count))
    doubles = members.size - count  # an empty place repeats a row of its own cluster
    assert sum(size - len(set(cluster)) for cluster in members.tolist()) == doubles < size


def test_rows_that_are_all_alike_still_get_clusters_of_equal_size() -> None:
    members = made(np.ones((48, WIDTH), np.float32), 6).members
    assert sorted(members.ravel().tolist()) == list(range(48))


def test_rows_end_up_near_their_centres() -> None:
    rows = groups(12, 6)
    found = made(rows, 6)
    apart = np.linalg.norm(rows - found.centres[found.owner], axis=1).mean()
    assert apart < 0.6 * np.linalg.norm(rows - rows.mean(axis=0), axis=1).mean()
    np.testing.assert_allclose(found.centres, rows[found.members].mean(axis=1), rtol=1e-4, atol=1e-5)


def test_alike_are_rows_whose_logits_are_and_not_those_that_look_alike() -> None:
    """States that vary along the first coordinate only: clusters are runs of it, whatever the other ones say."""
    random = np.random.default_rng(3)
    states = random.normal(size=(400, WIDTH)).astype(np.float32) * np.array([30.0] + [0.3] * (WIDTH - 1), np.float32)
    rows = random.normal(size=(60, WIDTH)).astype(np.float32)
    spread = np.ptp(rows[made(rows, 6, states).members][..., 0], axis=1).mean()
    assert spread < 0.25 * np.ptp(rows[:, 0])


def largest(rows: np.ndarray, found: EqualClusters, states: np.ndarray) -> np.ndarray:  # (n, C)
    """The largest logit of each cluster."""
    return (states @ rows.T)[:, found.members].max(axis=2)


def test_untaught_the_bias_is_what_a_clusters_best_row_has_above_its_centre(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clustering, "EPOCHS", 0)
    rows = groups(10, 6, noise=0.5)
    found = made(rows, 6)
    states = np.random.default_rng(4).normal(size=(50, WIDTH)).astype(np.float32)
    above = (largest(rows, found, states) - states @ found.centres.T).mean(axis=0)
    np.testing.assert_allclose(found.teach(states), above, atol=1e-4)


def test_taught_centres_foretell_the_largest_logits_better_on_new_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clustering, "EPOCHS", 20)
    rows, random = groups(10, 6, noise=0.5), np.random.default_rng(4)
    found = made(rows, 6)
    states, new = random.normal(size=(2, 600, WIDTH)).astype(np.float32)

    def error(bias: np.ndarray) -> float:
        wanted = largest(rows, found, new)
        weight = np.exp(wanted / clustering.TEMPERATURE)
        return float(((new @ found.centres.T + bias - wanted) ** 2 * weight).sum() / weight.sum())

    before = error((largest(rows, found, states) - states @ found.centres.T).mean(axis=0))
    assert error(found.teach(states)) < 0.97 * before


def test_probes_are_the_fewest_that_find_what_is_wanted_as_far_as_the_share_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = groups(30, 6, noise=0.5)
    found = made(rows, 6)
    states = np.random.default_rng(5).normal(size=(400, WIDTH)).astype(np.float32)
    bias = found.teach(states)
    score, true = states @ found.centres.T + bias, (states @ rows.T).argmax(axis=1)

    def recall(probes: int) -> float:
        best = np.argsort(-score, axis=1)[:, :probes]
        return float((best == found.owner[true][:, None]).any(axis=1).mean())

    monkeypatch.setattr(clustering, "SHARE", 1.0)
    monkeypatch.setattr(clustering, "RECALL", 0.9)
    probes = found.probes(bias, states)
    assert recall(probes) >= 0.9 > recall(probes - 1)
    monkeypatch.setattr(clustering, "SHARE", (len(bias) + 2 * 6) / len(rows))
    assert found.probes(bias, states) == 2


def test_a_full_cluster_takes_the_rows_that_would_lose_most() -> None:
    choices = np.array([[0, 1], [0, 1], [0, 1], [2, 0], [1, 0]])
    gains = np.array([[9.0, 8.0], [9.0, 1.0], [9.0, 5.0], [3.0, 2.0], [7.0, 6.0]])
    room = np.array([2, 1, 0])
    cluster, regret = first_with_room(choices, gains, room)
    assert cluster.tolist() == [0, 0, 0, 0, 1]
    assert regret.tolist() == [1, 8, 4, np.inf, 1]
    assert sorted(admitted(cluster, regret, room).tolist()) == [1, 3, 4]


def test_on_a_gpu_the_same_is_computed_in_mlx(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = groups(9, 6, noise=0.4)
    states = np.random.default_rng(6).normal(size=(60, WIDTH)).astype(np.float32)
    here = made(rows, 6)
    monkeypatch.setattr(assignment, "at_hand", lambda *arrays: (mx, *arrays))
    there = made(rows, 6)
    assert there.members.tolist() == here.members.tolist()
    np.testing.assert_allclose(there.teach(states), here.teach(states), atol=1e-4)
