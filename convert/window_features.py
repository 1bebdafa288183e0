"""The teacher's features of a run's windows, read as they are asked for or ahead, onto disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mlx_skipspec.convert.feature_files import FeatureFiles
from mlx_skipspec.convert.teacher import Features, Teacher
from mlx_skipspec.convert.world import World
from mlx_skipspec.plan import SkipPlan


class WindowFeatures:
    """What students of some plans need of windows.

    Args:
        windows, scored: (n, L) token ids and whether training is for what follows them.
        top: how many of the likeliest tokens.
    """

    def __init__(
        self,
        teacher: Teacher,
        plans: Sequence[SkipPlan],
        windows: np.ndarray,
        scored: np.ndarray,
        top: int,
        world: World,
    ) -> None:
        self.teacher, self.windows, self.scored, self.top = teacher, windows, torch.from_numpy(scored), top
        self.world = world
        ends = {border for plan in plans for border in (plan.skipped.start, plan.skipped.stop)}
        self.borders, self.tail = sorted(ends - {teacher.depth}), max(len(plan.after) for plan in plans)
        self.files: FeatureFiles | None = None

    def __len__(self) -> int:
        return len(self.windows)

    @property
    def length(self) -> int:
        """Tokens of a window."""
        return int(self.windows.shape[1])

    def of(self, at: Sequence[int]) -> Features:
        """Of the windows `at`, from disk or from the teacher."""
        if self.files is not None:
            scored = self.scored[list(at)].to(self.teacher.device)
            return Features.of(self.files.read(at), scored, self.teacher.model.dtype)
        return self._read(at)

    def _read(self, at: Sequence[int]) -> Features:
        ids = torch.from_numpy(self.windows[list(at)].astype(np.int64))
        return self.teacher.features(ids, self.scored[list(at)], self.borders, self.tail, self.top)

    def read_ahead(self, folder: Path, about: dict[str, Any], batch: int) -> None:
        """Put the features of all windows on disk, each process its share; `about` says of which model and text.

        Raises:
            SkipSpecError: `folder` holds others, or can't be written.
        """
        sizes = {name: value.shape[1:] for name, value in self._read([0]).arrays().items()}
        if self.world.first:
            FeatureFiles(folder, about, sizes, len(self))
        self.world.wait()
        files = FeatureFiles(folder, about, sizes, len(self))
        todo = files.missing()
        self.world.wait()  # before anybody writes
        todo = todo[self.world.rank :: self.world.size]
        with self.world.bar(len(todo) * self.length, "reading, tokens") as bar:
            for start in range(0, len(todo), batch):
                at = todo[start : start + batch]
                files.write(at, self._read(at).arrays())
                bar.update(len(at) * self.length)
        self.world.wait()
        self.files = files
