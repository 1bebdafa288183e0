"""The sidecar: what crosses between the machine that trains a bridge and the one that drafts with it.

A folder with `skipspec.json` and `hvc.safetensors`. It names the base model it belongs to by a *fingerprint*: a few
hundred weights read at fixed places. Casting or quantising the base moves them a little, another model moves them
altogether, so the two are compared by cosine and not by equality.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from mlx_skipspec.errors import SkipSpecError, one_line
from mlx_skipspec.folders import new_folder

SCHEMA = 1
KINDS = ("hvc", "hvc-mlp")  # linear, and with a gated MLP beside it
MANIFEST, BRIDGE = "skipspec.json", "hvc.safetensors"
SAME_BASE = 0.8  # cosine; 2-bit quantisation still gives about 0.87, an unrelated model within ±0.2 of 0
PROBES = 64  # weights read per matrix

RowsOf = Callable[[str, list[int]], np.ndarray]  # (tensor name, rows) -> (len(rows), columns), float


@dataclass(frozen=True)
class Base:
    """The model a sidecar belongs to."""

    depth: int
    hidden_size: int
    vocab_size: int
    fingerprint: tuple[float, ...]
    name: str = ""

    @classmethod
    def of(cls, depth: int, hidden_size: int, vocab_size: int, rows_of: RowsOf, name: str = "") -> Base:
        """Read the fingerprint through `rows_of`, which dequantises and works for torch and MLX alike."""
        probes: list[float] = []
        for tensor in _probed(depth):
            count = vocab_size if "embed" in tensor else hidden_size
            rows = [i * count // PROBES for i in range(PROBES)]
            values = np.asarray(rows_of(tensor, rows), dtype=np.float64)
            # A column per row, all over the width: 97 is prime to the widths in use.
            values = np.array([row[(97 * i) % len(row)] for i, row in enumerate(values)])
            probes += list(values / (np.linalg.norm(values) or 1.0))
        return cls(depth, hidden_size, vocab_size, tuple(round(float(value), 6) for value in probes), name)

    def check(self, found: Base, sidecar: str) -> None:
        """Refuse `found` as the model this sidecar was made for.

        Raises:
            SkipSpecError: it has other dimensions or other weights.
        """
        if self.fits(found):
            return
        what = "{} layers, hidden {}, vocabulary {}"
        other = what.format(*found.sizes)
        if self.sizes == found.sizes:
            other = f"other weights (likeness {self.likeness(found):.2f}, need {SAME_BASE})"
        raise SkipSpecError(
            f"The sidecar {sidecar} belongs to {self.name or 'another model'} ({what.format(*self.sizes)}), but the "
            f"loaded model has {other}; need a sidecar of this model. "
            "Make one: mlx-skipspec fit --model MODEL --out DIR."
        )

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.depth, self.hidden_size, self.vocab_size

    def fits(self, found: Base) -> bool:
        return self.sizes == found.sizes and self.likeness(found) >= SAME_BASE

    def likeness(self, other: Base) -> float:
        """Cosine of the two fingerprints, each probed matrix weighing the same."""
        a, b = np.array(self.fingerprint), np.array(other.fingerprint)
        return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b) or 1.0)) if a.shape == b.shape else 0.0


def _probed(depth: int) -> list[str]:
    layers = sorted({0, depth // 2, depth - 1})
    return ["model.embed_tokens.weight", *(f"model.layers.{i}.mlp.down_proj.weight" for i in layers)]


@dataclass(frozen=True)
class Sidecar:
    """A bridge and what is known about it.

    Attributes:
        head, tail: layers kept in front of and behind the gap.
        tensors: the bridge's parameters by name, numpy.
        made_by: how it was made: method, data, tokens.
        acceptance_by_position: of each draft given all before, on held-out text; `fit` measures it in the real loop,
            `train-hvc` along the text (which flatters).
    """

    base: Base
    head: int
    tail: int
    tensors: Mapping[str, np.ndarray] = field(repr=False, compare=False)
    kind: str = "hvc"
    made_by: Mapping[str, Any] = field(default_factory=dict)
    acceptance_by_position: tuple[float | None, ...] = ()

    def save(self, folder: Path, dtype: type = np.float16) -> None:
        """Write the folder under a temporary name and rename it; tensors in `dtype`.

        Raises:
            SkipSpecError: the folder exists, or cannot be written.
        """
        manifest = asdict(self) | {"schema": SCHEMA}
        del manifest["tensors"]
        with new_folder(folder) as temporary:
            tensors: dict[str, np.ndarray] = {}
            for name, value in self.tensors.items():
                tensors[name] = np.ascontiguousarray(value, dtype=dtype)
            try:
                save_file(tensors, temporary / BRIDGE)
            except SafetensorError as error:  # its word for a failed write
                raise OSError(None, str(error)) from error
            (temporary / BRIDGE).chmod(0o644)  # safetensors writes for the owner only
            (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Sidecar:
        """Read a sidecar folder.

        Raises:
            SkipSpecError: a file is missing, damaged or of another schema.
        """
        if not (folder / MANIFEST).is_file():
            raise SkipSpecError(f"No {MANIFEST} in {folder}; need a sidecar folder. Make one: mlx-skipspec fit.")
        try:
            manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            if not isinstance(manifest, dict):
                raise TypeError(f"{MANIFEST} holds no JSON object")
            if manifest.pop("schema") != SCHEMA:
                raise SkipSpecError(f"The sidecar {folder} has another schema; need {SCHEMA}. Update mlx-skipspec.")
            base = manifest.pop("base")
            base["fingerprint"] = tuple(float(value) for value in base["fingerprint"])
            manifest["acceptance_by_position"] = tuple(manifest["acceptance_by_position"])
            sidecar = cls(base=Base(**base), tensors=load_file(folder / BRIDGE), **manifest)
            for number in (*sidecar.base.sizes, sidecar.head, sidecar.tail):
                if type(number) is not int:
                    raise TypeError(f"{number!r} is no whole number")
        except SkipSpecError:
            raise
        except (OSError, ValueError, RecursionError, KeyError, TypeError, SafetensorError) as error:
            raise SkipSpecError(
                f"The sidecar {folder} cannot be read ({type(error).__name__}: {one_line(error)}); "
                "copy or fit it again."
            ) from error
        if sidecar.kind not in KINDS:
            raise SkipSpecError(
                f"The sidecar {folder} holds a {sidecar.kind!r}; need one of {', '.join(KINDS)}. Update mlx-skipspec."
            )
        return sidecar
