"""A Hugging Face checkpoint, and a bridge if there is one, as one MLX folder that mlx-lm can load too."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.utils import load_tokenizer, quantize_model, save_config, save_model

from mlx_skipspec.artifacts import Sidecar, new_folder
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.loading import DTYPES, base_of, eos_ids, load_target, read_config, resolve
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
    if out.exists():
        raise SkipSpecError(f"{out} exists; need a new folder. Remove it or choose another --out.")
    if dtype not in (None, *DTYPES):
        raise SkipSpecError(f"dtype={dtype!r}; need one of {', '.join(DTYPES)}.")
    if not quantise and (q_bits or q_group_size):
        raise SkipSpecError("--q-bits and --q-group-size only count with -q; add -q or drop them.")
    source = resolve(hf_path)
    config = flat_rope(read_config(source))
    notify(f"reading {source.name}")
    target = load_target(source, dtype or "checkpoint", lazy=True)
    if dtype:
        config = {k: v for k, v in config.items() if k not in ("quantization", "quantization_config")}
        config["torch_dtype"] = dtype
    config["tie_word_embeddings"] = target.args.tie_word_embeddings
    sidecar = None
    if hvc is not None:
        sidecar = Sidecar.load(hvc)
        sidecar.base.check(base_of(target), str(hvc))
    model = target.model
    if quantise:
        if "quantization" in config:
            raise SkipSpecError(f"{hf_path} is quantised already; give --dtype to dequantise it first, or drop -q.")
        group_size, bits = MODES[q_mode]
        group_size, bits = q_group_size or group_size, q_bits or bits
        notify(f"quantising to {bits} bits, groups of {group_size}, {q_mode}")
        try:
            model, config = quantize_model(model, config, group_size, bits, mode=q_mode)
            mx.eval(model.parameters())
        except ValueError as error:
            raise SkipSpecError(f"Can't quantise like that ({error}); try -q alone, or other --q-bits.") from error
    with new_folder(out) as folder:
        notify(f"writing {out}")
        try:
            save_model(folder, model)
        except RuntimeError as error:  # mlx's word for a failed write
            raise OSError(None, str(error)) from error
        save_config(config, folder / "config.json")
        load_tokenizer(source, eos_token_ids=eos_ids(source)).save_pretrained(folder)
        for extra in ("generation_config.json", "chat_template.jinja"):
            if (source / extra).is_file():
                shutil.copy(source / extra, folder / extra)
        if sidecar is not None:
            sidecar.save(folder / "skipspec")
        (folder / "README.md").write_text(card(hf_path, source, config, sidecar), encoding="utf-8")


def card(hf_path: str, source: Path, config: dict[str, object], sidecar: Sidecar | None) -> str:
    """The model card: where it comes from and how to run it."""
    base = hf_path if not Path(hf_path).exists() else source.name
    kind = "quantised" if "quantization" in config else str(config.get("torch_dtype") or config.get("dtype") or "")
    bridge = f", with a bridge over the layers between the first {sidecar.head} and the last {sidecar.tail}" if sidecar else ""
    return (
        f"---\nlibrary_name: mlx\npipeline_tag: text-generation\ntags:\n- mlx\n- mlx-skipspec\nbase_model: {base}\n---\n\n"
        f"# {source.name}\n\nConverted from {base} to MLX ({kind}){bridge}.\n\n"
        "```bash\nmlx-skipspec generate --model THIS_FOLDER --prompt hello   # drafts with its own layers\n"
        "mlx_lm.generate --model THIS_FOLDER --prompt hello          # plain\n```\n"
    )
