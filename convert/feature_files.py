"""The teacher's features on disk: a teacher pass costs more than a training step, and one cache serves many epochs.

By name: `x.A` in front of layer A, `k.I` and `v.I` keys (rotated) and values of layer I, `last` behind the last layer,
`top` the likeliest tokens.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlx_skipspec.errors import SkipSpecError

MANIFEST = "features.json"


class FeatureFiles:
    """A folder of memory-mapped arrays, fp16 (`top`: int32), a row per window.

    Args:
        about: which model and text; features of others are refused.
        sizes: shape of a window's features, by name.
        count: windows.

    Raises:
        SkipSpecError: the folder holds features of another model, text or plan, or can't be written.
    """

    def __init__(self, folder: Path, about: dict[str, Any], sizes: dict[str, tuple[int, ...]], count: int) -> None:
        self.folder = folder
        about = json.loads(json.dumps(about | {"windows": count}))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._check(about, {name: list(size) for name, size in sizes.items()})
            self.arrays = {
                name: self._open(name, (count, *size), np.int32 if name == "top" else np.float16)
                for name, size in sizes.items()
            }
            self.written = self._open("written", (count,), np.uint8)
        except OSError as error:
            raise SkipSpecError(f"{folder} cannot be written ({error.strerror}); choose another folder.") from error

    def _check(self, about: dict[str, Any], sizes: dict[str, list[int]]) -> None:
        """What is there may hold more than is asked for: features of other plans."""
        manifest, self.whole = self.folder / MANIFEST, True
        if not manifest.is_file():
            new = self.folder / f"{MANIFEST}.new"  # a full disk leaves no half one
            new.write_text(json.dumps({"about": about, "sizes": sizes}) + "\n", encoding="utf-8")
            os.replace(new, manifest)
            return
        try:
            found = json.loads(manifest.read_text(encoding="utf-8"))
            fits = found["about"] == about and sizes.items() <= found["sizes"].items()
            self.whole = fits and sizes == found["sizes"]
        except (ValueError, KeyError, TypeError, AttributeError):
            fits = False
        if not fits:
            raise SkipSpecError(
                f"{self.folder} holds features of another model, text or plan; remove it or choose another folder."
            )

    def _open(self, name: str, shape: tuple[int, ...], dtype: type) -> np.memmap[Any, Any]:
        file = self.folder / f"{name}.bin"
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if not file.is_file() or file.stat().st_size != size:
            with file.open("ab") as handle:
                if hasattr(os, "posix_fallocate"):  # a full disk says so now, not as SIGBUS later
                    os.posix_fallocate(handle.fileno(), 0, size)
                handle.truncate(size)
        return np.memmap(file, dtype, "r+", shape=shape)

    def write(self, at: Sequence[int], features: Mapping[str, np.ndarray]) -> None:
        """Store a batch's features as windows `at`.

        Raises:
            SkipSpecError: they are not finite, or don't fit fp16, or the folder is of a run that needs more features
                and was never finished: `written` counts for all of them.
        """
        if not self.whole:
            raise SkipSpecError(
                f"{self.folder} was begun by a run with more plans; finish that one first, or choose another folder."
            )
        for name, value in features.items():
            if name != "top" and not np.isfinite(value).all():
                raise SkipSpecError("The model gave NaN or infinite hidden states; need whole weights, or float32.")
            if name != "top" and np.abs(value).max() > np.finfo(np.float16).max:
                raise SkipSpecError(
                    "The model's hidden states are too large for the fp16 of features on disk; "
                    "train without --features, or fit with --minutes 0."
                )
            self.arrays[name][at] = value
        self.written[at] = 1

    def read(self, at: Sequence[int]) -> dict[str, np.ndarray]:
        """The features of windows `at`."""
        return {name: np.asarray(array[np.asarray(at)]) for name, array in self.arrays.items()}

    def missing(self) -> np.ndarray:
        """Windows not written yet."""
        return np.flatnonzero(self.written == 0)
