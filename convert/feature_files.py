"""The teacher's features on disk: a teacher pass costs more than a training step, and one cache serves many epochs."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mlx_skipspec.convert.teacher import Features
from mlx_skipspec.errors import SkipSpecError

MANIFEST = "features.json"


class FeatureFiles:
    """A folder of memory-mapped arrays, fp16, one row per window; a window is read again only if it was written.

    Raises:
        SkipSpecError: the folder holds features of another model, text or plan, or can't be written.
    """

    def __init__(self, folder: Path, about: dict[str, Any], sizes: dict[str, tuple[int, ...]], count: int) -> None:
        self.folder, self.sizes = folder, sizes
        about = json.loads(json.dumps(about | {"sizes": sizes, "windows": count}))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._check(about)
            self.arrays = {
                name: self._open(name, (count, *size), np.int32 if name == "top" else np.float16)
                for name, size in sizes.items()
            }
            self.written = self._open("written", (count,), np.uint8)
        except OSError as error:
            raise SkipSpecError(f"{folder} cannot be written ({error.strerror}); choose another --features.") from error

    def _check(self, about: dict[str, Any]) -> None:
        manifest = self.folder / MANIFEST
        if not manifest.is_file():
            manifest.write_text(json.dumps(about) + "\n", encoding="utf-8")
            return
        try:
            found = json.loads(manifest.read_text(encoding="utf-8"))
        except ValueError:
            found = None
        if found != about:
            raise SkipSpecError(
                f"{self.folder} holds features of another model, text or plan; remove it or choose another --features."
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

    def write(self, at: Sequence[int], features: Features) -> None:
        """Store a batch's features as windows `at`."""
        for name, value in named(features).items():
            array = value.cpu().numpy() if name == "top" else value.float().cpu().numpy()
            if name != "top" and np.abs(array).max() > np.finfo(np.float16).max:
                raise SkipSpecError("The model's hidden states do not fit fp16; train without --features.")
            self.arrays[name][at] = array
        self.written[at] = 1

    def read(self, at: Sequence[int], device: torch.device, dtype: torch.dtype) -> Features:
        """The features of windows `at`."""
        at = np.asarray(at)
        tensors = {name: torch.from_numpy(array[at]).to(device) for name, array in self.arrays.items()}
        tensors = {name: value.long() if name == "top" else value.to(dtype) for name, value in tensors.items()}
        layers = sorted(int(name[2:]) for name in tensors if name.startswith("k."))
        return Features(
            x={int(name[2:]): value for name, value in tensors.items() if name.startswith("x.")},
            rows={i: (tensors[f"k.{i}"], tensors[f"v.{i}"]) for i in layers},
            last=tensors["last"],
            top=tensors["top"],
        )


def named(features: Features) -> dict[str, torch.Tensor]:
    """Features by the name of their file."""
    found = {f"x.{a}": x for a, x in features.x.items()}
    for i, (k, v) in features.rows.items():
        found |= {f"k.{i}": k, f"v.{i}": v}
    return found | {"last": features.last, "top": features.top}


def sizes_of(features: Features) -> dict[str, tuple[int, ...]]:
    """What the arrays hold of one window."""
    return {name: tuple(value.shape[1:]) for name, value in named(features).items()}
