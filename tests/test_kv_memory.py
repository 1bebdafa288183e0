"""What the cache costs: a window's rows are bounded, and a row is written where it stays."""

from __future__ import annotations

from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from watched_kv import GROUP, HEADS, WIDTH, rows

from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.layer_kv import RESERVE, STEP, LayerKV, Window


@pytest.mark.parametrize(("size", "keep"), [(0, 0), (4, 4), (3, 4)])
def test_a_window_with_no_room_behind_the_rows_it_keeps_is_refused(size: int, keep: int) -> None:
    with pytest.raises(SkipSpecError, match=f"need more than {keep}"):
        Window(size, keep)


@pytest.mark.parametrize("bits", [None, 4])
@pytest.mark.parametrize("window", [Window(64), Window(64, keep=4), Window(129)], ids=str)
@pytest.mark.parametrize("block", [1, 5, 700])
def test_a_window_never_holds_more_than_a_constant_number_of_rows(window: Window, bits: int | None, block: int) -> None:
    layer = LayerKV(window, bits, GROUP)
    new = rows(range(block))
    row_bytes = 2 * HEADS * WIDTH * (32 if bits is None else bits + 2 * 32 / GROUP) / 8
    for _ in range(5000 // block if block > 1 else 1500):
        layer.update_and_fetch(*new)
        mx.eval(layer.state)
        assert layer.nbytes <= (window.size + RESERVE + 2 * STEP) * row_bytes


@pytest.mark.parametrize("bits", [None, 4])
@pytest.mark.parametrize("window", [None, Window(64), Window(64, keep=4), Window(129)], ids=str)
def test_a_row_is_written_where_it_stays_and_buffers_move_once_in_eighty_tokens_at_most(
    window: Window | None, bits: int | None
) -> None:
    layer, new, addresses = LayerKV(window, bits, GROUP), rows([7]), []
    for _ in range(1500):
        mx.eval(layer.update_and_fetch(*new), layer.state)
        first = tree_flatten(layer.state)[0][1]
        addresses.append(np.array(first, copy=False).__array_interface__["data"][0])
    assert sum(a != b for a, b in pairwise(addresses)) <= len(addresses) / 80


@pytest.mark.parametrize("block", [1, 5, 700])
def test_a_growing_buffer_has_room_for_an_eighth_more_rows_or_64_and_never_for_a_step_more(block: int) -> None:
    layer, new = LayerKV(), rows(range(block))
    for length in range(block, 5000 if block > 1 else 1500, block):
        layer.update_and_fetch(*new)
        mx.eval(layer.state)
        assert layer.nbytes < (length + min(max(length / 8 + 1, 64), STEP)) * 2 * HEADS * WIDTH * 4
