"""Draft heads in a sidecar: a file for each beside the bridge; in the manifest, whose head it indexes and how well."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from mlx_skipspec.errors import SkipSpecError, one_line
from mlx_skipspec.fingerprint import SAME, likeness
from mlx_skipspec.head_measured import Measured

FILES = {"clusters": "head-clusters.safetensors", "subset": "head-subset.safetensors", "ann": "head.usearch"}
BLOCK_BYTES = 1 << 22


@dataclass(frozen=True)
class HeadFile:
    """One head of a sidecar.

    Attributes:
        fingerprint: of the head it indexes.
        settings: what it needs to run, e.g. {"probes": 52}.
        bytes, crc32: of the file.
        path: where the file is.
    """

    kind: str
    fingerprint: tuple[float, ...]
    settings: Mapping[str, Any]
    measured: Measured
    bytes: int
    crc32: int
    path: Path = field(compare=False)

    @classmethod
    def of(
        cls, kind: str, path: Path, fingerprint: tuple[float, ...], settings: Mapping[str, Any], measured: Measured
    ) -> HeadFile:
        """Of a file just written."""
        return cls(kind, fingerprint, settings, measured, path.stat().st_size, crc32(path), path)

    def as_json(self) -> dict[str, Any]:
        """What the manifest holds, under its kind."""
        entry = asdict(self)
        del entry["kind"], entry["path"]
        return entry

    @classmethod
    def from_json(cls, kind: str, entry: dict[str, Any], folder: Path) -> HeadFile:
        """Raises KeyError, TypeError or ValueError where a manifest says something else."""
        path = folder / FILES[kind]
        fingerprint = tuple(float(value) for value in entry["fingerprint"])
        if entry.keys() != {"fingerprint", "settings", "measured", "bytes", "crc32"}:
            raise ValueError(f"the head {kind} has other keys than it should")
        measured = Measured.from_json(entry["measured"])
        settings = dict(entry["settings"])
        return cls(kind, fingerprint, settings, measured, int(entry["bytes"]), int(entry["crc32"]), path)

    def check(self, fingerprint: Sequence[float]) -> None:
        """Refuse to index another head, and a file that is not as it was written.

        Raises:
            SkipSpecError: it was built for other weights, or the file is missing or damaged.
        """
        if (found := likeness(self.fingerprint, fingerprint)) < SAME:
            raise self._refusal(f"indexes another head than the model's (likeness {found:.2f}, need {SAME})")
        try:
            size = self.path.stat().st_size
            if size != self.bytes:
                raise self._refusal(f"has {size} bytes; need {self.bytes}")
            if crc32(self.path) != self.crc32:
                raise self._refusal("has a wrong checksum")
        except OSError as error:
            raise self._refusal(f"cannot be read ({error.strerror})") from error

    def tensors(self) -> dict[str, np.ndarray]:
        """A safetensors file's.

        Raises:
            SkipSpecError: it is none.
        """
        try:
            return load_file(self.path)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise self._refusal(f"cannot be read ({one_line(error)})") from error

    def count(self, name: str, most: int) -> int:
        """A setting that is a whole number of 1 to `most`.

        Raises:
            SkipSpecError: it is something else.
        """
        value: Any = self.settings.get(name)
        self.need(type(value) is int and 1 <= value <= most, f"1 to {most} {name}")
        return int(value)

    def need(self, fits: bool, what: str) -> None:
        """Refuse a file whose content cannot be this head's.

        Raises:
            SkipSpecError: it does not fit.
        """
        if not fits:
            raise self._refusal(f"does not fit this model; need {what}")

    def _refusal(self, what: str) -> SkipSpecError:
        return SkipSpecError(
            f"The head {self.path} {what}. Build it again: "
            f"mlx-skipspec build-head --kind {self.kind} --model MODEL --out {self.path.parent}."
        )


def crc32(path: Path) -> int:
    """Of a file: an index runs as native code on what the file says, so it must be the file that was written."""
    found = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            found = zlib.crc32(block, found)
    return found
