"""The closed-form start, in PyTorch: what the teacher reads goes into the sums of `closed_form`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional as F

from mlx_skipspec.convert.closed_form import NormalEquations
from mlx_skipspec.convert.hvc_torch import EPS
from mlx_skipspec.convert.window_features import WindowFeatures
from mlx_skipspec.plan import SkipPlan

WINDOWS = 400  # are enough


def least_squares(
    plans: Sequence[SkipPlan], windows: WindowFeatures, batch: int
) -> dict[SkipPlan, dict[str, np.ndarray]]:
    """Every plan's closed-form start, on the first windows, each process its share."""
    world, size = windows.world, windows.teacher.hidden_size
    sums = {plan: torch.zeros(2 * size, 3 * size, dtype=torch.float64) for plan in plans}
    mine = range(min(WINDOWS, len(windows)))[world.rank :: world.size]
    with world.bar(len(mine) * windows.length, "least squares, tokens") as bar:
        for start in range(0, len(mine), batch):
            at = mine[start : start + batch]
            features = windows.of(at)
            last = layer_norm(features.last)[:, :-1]
            for plan in plans:
                x, entering = features.x[plan.skipped.start], features.x.get(plan.skipped.stop, features.last)
                f = torch.cat([layer_norm(x)[:, 1:], last], dim=-1).flatten(0, 1)
                gained = (entering - x)[:, 1:].float().flatten(0, 1)
                sums[plan] += (f.T @ torch.cat([f, gained], dim=-1)).double().cpu()
            bar.update(len(at) * windows.length)
    found = {}
    for plan, total in sums.items():
        on_device = total.to(windows.teacher.device)
        world.sum([on_device])
        equations = NormalEquations(size)
        total = on_device.cpu()
        equations.add(total[:, : 2 * size].numpy(), total[:, 2 * size :].numpy())
        found[plan] = equations.solve()
    return found


def layer_norm(h: torch.Tensor) -> torch.Tensor:
    """In fp32, at scale 1 and shift 0."""
    return F.layer_norm(h.float(), h.shape[-1:], eps=EPS)
