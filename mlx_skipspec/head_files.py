"""Draft heads in a sidecar: a file for each beside the bridge; in the manifest, whose head it indexes and how well."""

from __future__ import annotations

import math
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

FILES = {"clusters": "head-clusters.safetensors", "subset": "head-subset.safetensors", "ann": "head.usearch"}
BLOCK_BYTES = 1 << 22


@dataclass(frozen=True)
class Measured:
    """What a head came to on the machine that built it, on text it had not seen.

    Attributes:
        recall: share of hidden states for which it chose the dense head's token, of `queries`.
        seconds, dense_seconds: median of a choice by this head, and by the dense one.
        layers_seconds: of a draft step without its head.
        pass_seconds: of a target pass over 1, 2, 3, … tokens.
    """

    recall: float
    queries: int
    seconds: float
    dense_seconds: float
    build_seconds: float
    layers_seconds: float = 0.0
    pass_seconds: tuple[float, ...] = ()

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Measured:
        """Raises TypeError or ValueError where a manifest says something else."""
        numbers = {name: float(value) for name, value in entry.items() if name not in ("queries", "pass_seconds")}
        found = cls(queries=int(entry["queries"]), pass_seconds=tuple(map(float, entry["pass_seconds"])), **numbers)
        times = (found.seconds, found.dense_seconds, *found.pass_seconds)
        if not (0 <= found.recall <= 1 and all(0 < time < math.inf for time in times)):
            raise ValueError("a measurement that cannot be")
        return found

    def rate(self, acceptance: Sequence[float], *, dense: bool = False) -> float:
        """Tokens per second with this head, or with the dense one: the best over k of E(k) / (k·t_draft + t_pass(k+1)).

        E(k) = 1 + α_1 + α_1·α_2 + …, the α_i times recall, as if misses fell on good and bad drafts alike.
        """
        recall, draft = (1.0, self.dense_seconds) if dense else (self.recall, self.seconds)
        draft += self.layers_seconds
        best, emitted, reached = 0.0, 1.0, 1.0
        for k, (alpha, verify) in enumerate(zip(acceptance, self.pass_seconds[1:], strict=False), 1):
            reached *= alpha * recall
            emitted += reached
            best = max(best, emitted / (k * draft + verify))
        return best


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
