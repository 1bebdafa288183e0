"""Options that convert cannot follow, and checkpoints it cannot convert."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlx_lm.utils import quantize_model, save_config, save_model
from spoil import Refuse

from mlx_skipspec.loading import load_target, read_config


@pytest.mark.parametrize(
    "options",
    [
        *(("-q", "--q-bits", value) for value in ("7", "0", "-1", "x", str(10**30))),
        *(("-q", "--q-group-size", value) for value in ("0", "-64", "1", "48", str(10**30))),
        ("-q", "--q-mode", "mxfp4", "--q-bits", "8"),
        ("-q", "--q-mode", "nonsense"),
        ("--q-bits", "4"),
        ("--q-mode", "mxfp4"),
        ("--dtype", "int8"),
        ("--hvc", "nowhere"),
    ],
    ids=" ".join,
)
def test_an_option_of_convert_no_model_could_follow_is_refused_before_one_is_opened(
    refuse: Refuse, no_model: None, model: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    refuse("convert", "--hf-path", model, "--out", tmp_path / "new" / "out", *options)


def test_quantising_what_is_quantised(refuse: Refuse, no_weights: None, copy: Path, tmp_path: Path) -> None:
    quantised, config = quantize_model(load_target(copy, lazy=True).model, read_config(copy), 32, 4)
    save_model(tmp_path / "q", quantised)
    save_config(config, tmp_path / "q" / "config.json")
    assert "quantised already" in refuse("convert", "--hf-path", tmp_path / "q", "--out", tmp_path / "out", "-q")


@pytest.mark.parametrize("spoil", ["config.json", "tokenizer.json", "model.safetensors"])
def test_converting_a_damaged_checkpoint_leaves_nothing(
    refuse: Refuse, no_weights: None, copy: Path, tmp_path: Path, spoil: str
) -> None:
    (copy / spoil).write_text("{")
    refuse("convert", "--hf-path", copy, "--out", tmp_path / "new" / "out")
