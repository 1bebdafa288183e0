"""One checkpoint, loaded by us and by mlx-lm, with every choice of drafter; and what it answers."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import checkpoint
import mlx_lm
from drafters import Oracle, random_bridge
from mlx.utils import tree_flatten

from mlx_skipspec import load, stream_generate
from mlx_skipspec.api import Response, encode
from mlx_skipspec.artifacts import Sidecar
from mlx_skipspec.drafting import Drafting, choose_drafter
from mlx_skipspec.loading import base_of

PROMPT = "hello world, the draft and then the draft"
CHOICES = {
    "none": {},
    "lookup": {},
    "skip": {"plan": "1,2"},
    "auto": {"plan": "2,1"},
    "skip, bridged": {},
    "auto, bridged": {},
}
MODES = {
    "none": "none",
    "lookup": "lookup",
    "skip": "skip(1,2)",
    "auto": "lookup+skip(2,1)",
    "skip, bridged": "skip(1,2)+hvc",
    "auto, bridged": "lookup+skip(1,2)+hvc",
}
MAIN = ["none", "auto, bridged"]
TOKENS = 24


class Model:
    """One checkpoint, loaded by us and by mlx-lm."""

    def __init__(self, family: str, kind: str = "byte level", **changes: Any) -> None:
        with TemporaryDirectory() as folder:
            checkpoint.write(Path(folder), family, tokenizer=checkpoint.TOKENIZERS[kind](), **changes)
            self.target, self.tokenizer = load(folder)
            self.theirs, self.their_tokenizer = mlx_lm.load(folder)
            self.ids = encode(self.tokenizer, PROMPT)
            bridge = dict(tree_flatten(random_bridge(self.target.hidden_size).parameters()))
            sidecar = Path(folder) / "sidecar"
            Sidecar(base_of(self.target), 1, 2, bridge).save(sidecar)
            self.drafting = {
                name: choose_drafter(
                    self.target, name.split(",")[0], sidecar=sidecar if "bridged" in name else None, **options
                )
                for name, options in CHOICES.items()
            }

    def ask(self, **options: Any) -> list[Response]:
        options = {"prompt": PROMPT, "max_tokens": TOKENS, "drafting": self.drafting["none"], **options}
        return list(stream_generate(self.target, self.tokenizer, **options))

    def oracle(self, tokens: list[int]) -> Drafting:
        return Drafting(Oracle([*self.ids, *tokens]), "oracle")


@cache
def model(family: str = "llama", kind: str = "byte level", eos: int = checkpoint.EOS, context: int = 4096) -> Model:
    return Model(family, kind, eos=eos, max_position_embeddings=context)


def tokens_of(answer: list[Response]) -> list[int]:
    return [response.token for response in answer]


def text_of(answer: list[Response]) -> str:
    return "".join(response.text for response in answer)


@cache
def whole(max_kv_size: int | None = None) -> list[int]:
    return tokens_of(model().ask(max_kv_size=max_kv_size))
