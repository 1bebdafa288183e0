"""Checkpoints of a training run: each complete under its name or not there; the newest two are kept."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from mlx_skipspec.errors import SkipSpecError, one_line
from mlx_skipspec.folders import new_folder

KEPT = 2


class Checkpoints:
    """A folder of `step-…` folders, all of the same run.

    Args:
        about: what makes a run this run (model, plans, data, recipe); one with another `about` is not continued.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self.folder = folder
        self.about = json.loads(json.dumps(about))

    def save(self, step: int, tensors: Mapping[str, np.ndarray], extra: Mapping[str, Any] | None = None) -> None:
        """Write `step-…`, then drop the oldest.

        Raises:
            SkipSpecError: no room or no right to write; what was there before is untouched.
        """
        name = self.folder / f"step-{step:08d}"
        if name.is_dir():
            return
        with new_folder(name) as temporary:
            try:
                save_file(dict(tensors), temporary / "state.safetensors")
            except SafetensorError as error:
                raise OSError(None, str(error)) from error
            state = {"about": self.about, "step": step, "extra": dict(extra or {})}
            (temporary / "run.json").write_text(json.dumps(state) + "\n", encoding="utf-8")
        for old in self._names()[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)

    def latest(self) -> tuple[int, dict[str, np.ndarray], dict[str, Any]] | None:
        """Step, tensors and extra of the newest one, if any.

        Raises:
            SkipSpecError: it can't be read, or is of another run.
        """
        if not (names := self._names()):
            return None
        newest = names[-1]
        try:
            state = json.loads((newest / "run.json").read_text(encoding="utf-8"))
            found, step, extra = dict(state["about"]), int(state["step"]), dict(state["extra"])
            tensors = load_file(newest / "state.safetensors")
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise SkipSpecError(
                f"The checkpoint {newest} cannot be read ({one_line(error)}); remove it to go on from the one before."
            ) from error
        for key in sorted(found.keys() | self.about.keys()):
            if found.get(key) != self.about.get(key):
                raise SkipSpecError(
                    f"The checkpoint {newest} is of another run: {key} was {found.get(key)!r}, "
                    f"now it is {self.about.get(key)!r}; give the same again, or remove {self.folder}."
                )
        return step, tensors, extra

    def _names(self) -> list[Path]:
        return sorted(self.folder.glob("step-*"))
