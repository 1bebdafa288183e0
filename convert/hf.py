"""A Hugging Face checkpoint, and a bridge if there is one, as one MLX folder that mlx-lm can load too."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.utils import quantize_model, save_config, save_model

from mlx_skipspec.artifacts import Sidecar, attach
from mlx_skipspec.errors import SkipSpecError, one_line
from mlx_skipspec.folders import check_new, new_folder
from mlx_skipspec.hvc import HVC
from mlx_skipspec.loading import (
    DTYPES,
    base_of,
    load_target,
    read_config,
    read_tokenizer,
    read_weights,
    resolve,
)
from mlx_skipspec.models.args import flat_rope

MODES = {"affine": (64, 4), "mxfp4": (32, 4), "nvfp4": (16, 4), "mxfp8": (32, 8)}  # default group size and bits


def convert(
    hf_path: str,
    out: Path,
    *,
    quantise: bool = False,
    q_bits: int | None = None,
    q_group_size: int | None = None,
    q_mode: str = "affine",
    dtype: str | None = None,
    hvc: Path | None = None,
    notify: Callable[[str], None] = lambda line: None,
) -> None:
    """Write `out`: weights, config, tokenizer, chat template, generation config, card and, with `hvc`, the sidecar.

    Weights keep the checkpoint's dtype unless `dtype` says otherwise. Transformers 5's nested `rope_parameters` are
    written flat, as mlx-lm reads them.

    Raises:
        SkipSpecError: `out` exists or cannot be written, the checkpoint is damaged or of a family we do not compute,
            it can't be quantised like that, or the sidecar is another model's.
    """
    check_new(out)
    if dtype not in (None, *DTYPES):
        raise SkipSpecError(f"dtype={dtype!r}; need one of {', '.join(DTYPES)}.")
    asked = q_bits is not None or q_group_size is not None or q_mode != "affine"
    if asked and not quantise:
        raise SkipSpecError("--q-bits, --q-group-size and --q-mode only count with -q; add -q or drop them.")
    group_size, bits = MODES[q_mode]
    group_size, bits = group_size if q_group_size is None else q_group_size, bits if q_bits is None else q_bits
    if quantise:
        _check_quantisation(group_size, bits, q_mode)
    sidecar = None if hvc is None else Sidecar.load(hvc)
    source = resolve(hf_path)
    config = flat_rope(read_config(source))
    if quantise and dtype is None and config.keys() & {"quantization", "quantization_config"}:
        raise SkipSpecError(f"{hf_path} is quantised already; give --dtype to dequantise it first, or drop -q.")
    target = load_target(source, dtype or "checkpoint", lazy=True)
    if dtype:
        config = {k: v for k, v in config.items() if k not in ("quantization", "quantization_config", "dtype")}
        config["torch_dtype"] = dtype
    config["tie_word_embeddings"] = target.args.tie_word_embeddings
    if scaling := target.args.rope_scaling:
        # transformers and we go by a YaRN's attention_factor, mlx-lm by the mscale that says the same
        given = config["rope_scaling"].get("attention_factor")
        config["rope_scaling"] = scaling | ({} if given is None else {"attention_factor": given})
    tokenizer = read_tokenizer(source)
    if sidecar is not None:
        sidecar.base.check(base_of(target), str(hvc))
        HVC.from_tensors(sidecar.tensors, hidden_size=target.hidden_size)
    notify(f"reading {source.name}")
    model = target.model
    if quantise:
        notify(f"quantising to {bits} bits, groups of {group_size}, {q_mode}")
        try:
            with contextlib.redirect_stdout(sys.stderr):  # mlx-lm prints what it came to
                model, config = quantize_model(model, config, group_size, bits, mode=q_mode)
        except ValueError as error:
            raise SkipSpecError(f"Can't quantise like that ({error}); try -q alone, or other --q-bits.") from error
        if not any(name.endswith(".scales") for name, _ in tree_flatten(model.parameters())):
            raise SkipSpecError(
                f"No row of {hf_path} can be cut into groups of {group_size}; need a --q-group-size that divides "
                f"{target.hidden_size}."
            )
    read_weights(target)
    with new_folder(out) as folder:
        notify(f"writing {out}")
        try:
            save_model(folder, model)
        except RuntimeError as error:  # mlx's word for a failed write
            raise OSError(None, str(error)) from error
        save_config(config, folder / "config.json")
        try:
            tokenizer.save_pretrained(folder)
        except Exception as error:  # a failed write is an OSError in its Python part, a bare Exception in its Rust one
            raise OSError(None, one_line(error)) from error
        for extra in ("generation_config.json", "chat_template.jinja"):
            if (source / extra).is_file():
                shutil.copy(source / extra, folder / extra)
        if sidecar is not None:
            sidecar.save(folder / "skipspec")
            for head in sidecar.heads.values():
                copy = shutil.copyfile(head.path, folder / f".{head.path.name}")
                attach(folder / "skipspec", replace(head, path=copy))
        (folder / "README.md").write_text(card(hf_path, source, config, sidecar), encoding="utf-8")


def _check_quantisation(group_size: int, bits: int, mode: str) -> None:
    """Let mlx say what it packs, before a model is loaded for it."""
    try:
        if not 0 < group_size <= 1024:  # mlx would divide by it
            raise ValueError("no such group size")
        mx.eval(mx.quantize(mx.zeros((1, group_size)), group_size, bits, mode=mode))
    except (ValueError, TypeError, RuntimeError) as error:
        raise SkipSpecError(
            f"Can't quantise to {bits} bits in groups of {group_size} ({one_line(error)}); "
            "try -q alone, or other --q-bits."
        ) from error


def card(hf_path: str, source: Path, config: dict[str, object], sidecar: Sidecar | None) -> str:
    """The model card: where it comes from and how to run it."""
    base = hf_path if not Path(hf_path).exists() else source.name
    kind = "quantised" if "quantization" in config else str(config.get("torch_dtype") or config.get("dtype") or "")
    bridge = ""
    if sidecar:
        bridge = f", with a bridge over the layers between the first {sidecar.head} and the last {sidecar.tail}"
    return (
        "---\nlibrary_name: mlx\npipeline_tag: text-generation\ntags:\n- mlx\n- mlx-skipspec\n"
        f"base_model: {base}\n---\n\n# {source.name}\n\nConverted from {base} to MLX ({kind}){bridge}.\n\n"
        "```bash\nmlx-skipspec generate --model THIS_FOLDER --prompt hello   # drafts with its own layers\n"
        "mlx_lm.generate --model THIS_FOLDER --prompt hello          # plain\n```\n"
    )
