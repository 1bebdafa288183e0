"""Which drafter runs, and under which name people see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from mlx_skipspec.artifacts import MANIFEST, Sidecar
from mlx_skipspec.drafters import Drafter, FirstOf, LayerSkip, NoDraft, PromptLookup
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.head_choice import HEADS, choose_head
from mlx_skipspec.hvc import HVC
from mlx_skipspec.loading import base_of
from mlx_skipspec.pace import Paced
from mlx_skipspec.plan import SkipPlan, head_and_tail
from mlx_skipspec.sampling import GREEDY, Sampler
from mlx_skipspec.target import Target

CHOICES = ("auto", "none", "skip", "lookup")
BUNDLED = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Drafting:
    """A drafter and the mode it stands for, e.g. `lookup+skip(2,2)+hvc`, or `none` when nothing drafts."""

    drafter: Drafter
    mode: str

    @property
    def unpaced(self) -> Drafter:
        """The same, guessing whenever it has an idea and as far as it may, for those who want to see guesses."""
        if not isinstance(self.drafter, Paced):
            return self.drafter
        first, *others = self.drafter.drafters
        return FirstOf(first, *others) if others else first


def check_choice(choice: str, plan: str | None = None, sidecar: Path | None = None, head: str = "auto") -> None:
    """Refuse what no model could draft with, before one is fetched or loaded.

    Raises:
        SkipSpecError: unknown choice, one that uses no plan, sidecar or head, no plan at all, or a damaged sidecar.
    """
    if choice not in CHOICES:
        raise SkipSpecError(f"drafter={choice!r}; need one of {', '.join(CHOICES)}.")
    if head not in HEADS:
        raise SkipSpecError(f"head={head!r}; need one of {', '.join(HEADS)}.")
    if choice in ("none", "lookup") and (plan is not None or sidecar is not None):
        raise SkipSpecError(f"--drafter {choice} uses no --plan and no --sidecar; drop them, or choose skip or auto.")
    if choice in ("none", "lookup") and head != "auto":
        raise SkipSpecError(f"--drafter {choice} uses no --head; drop it, or choose skip or auto.")
    if plan is not None:
        head_and_tail(plan)
    if sidecar is not None:
        HVC.from_tensors(Sidecar.load(sidecar).tensors)


def choose_drafter(
    target: Target,
    choice: str = "auto",
    *,
    plan: str | None = None,
    sidecar: Path | None = None,
    head: str = "auto",
    sampler: Sampler = GREEDY,
    recalibrate: bool = False,
    explain: Callable[[str], None] | None = None,
    lookup: PromptLookup | None = None,
) -> Drafting:
    """Make the drafter people asked for, or say why it can't be had; never another one in silence.

    Args:
        choice: "none"; "skip", the model's own layers; "lookup", copying from the context; "auto", lookup and, where a
            sidecar or a plan is at hand, skip. Each drafts as far as it pays by the clock.
        plan: layers a skip keeps, `HEAD,TAIL`; needed where no sidecar says it.
        sidecar: folder of the bridge; else one inside or beside the model's, else one that comes with us.
        head: what scores a skip's drafts: "dense", a kind that was built into the sidecar, or "auto", the fastest of
            these as measured.
        sampler: the one the target's tokens will be drawn with.
        recalibrate: measure again what passes and draft steps cost here.
        explain: hears a line whenever the pace decides otherwise than before.
        lookup: the one that copies, which may have read the text already; None for a new one.

    Raises:
        SkipSpecError: unknown choice, no sidecar and no plan for "skip", a sidecar that fits neither model nor plan, or
            a head it has not got.
    """
    check_choice(choice, plan, sidecar, head)
    lookup = lookup or PromptLookup()

    def paced(drafters: list[Drafter], mode: str) -> Drafting:
        return Drafting(Paced(drafters, recalibrate=recalibrate, explain=explain), mode)

    if choice == "none":
        return Drafting(NoDraft(), "none")
    if choice == "lookup":
        return paced([lookup], "lookup")
    skip = _skip(target, plan, sidecar, head, sampler)
    if choice == "skip":
        if skip is None:
            raise SkipSpecError(
                "--drafter skip found no sidecar for this model; need --sidecar DIR or --plan HEAD,TAIL. "
                "Make one: mlx-skipspec fit --model MODEL --out DIR."
            )
        return paced([skip.drafter], skip.mode)
    if skip is None and head != "auto":
        raise SkipSpecError(
            f"--head {head} is for the model's own layers, and this model has no sidecar; need --sidecar DIR or "
            "--plan HEAD,TAIL. Make one: mlx-skipspec fit --model MODEL --out DIR."
        )
    if skip is None:
        return paced([lookup], "lookup")
    return paced([lookup, skip.drafter], f"lookup+{skip.mode}")


def find_sidecar(target: Target, plan: SkipPlan | None = None) -> Sidecar | None:
    """The sidecar inside the model's folder or beside it, which must be the model's; else a bundled one that is, for
    `plan` if there is one, else the first."""
    base = base_of(target)
    if (home := target.folder) is not None:
        for folder in (home / "skipspec", home.parent / f"{home.name}-skipspec"):
            if (folder / MANIFEST).is_file():
                found = Sidecar.load(folder)
                found.base.check(base, str(folder))
                return found
    bundled = [Sidecar.load(manifest.parent) for manifest in sorted(BUNDLED.glob(f"*/{MANIFEST}"))]
    fitting = [found for found in bundled if found.base.fits(base)]
    of_plan = [found for found in fitting if plan == SkipPlan.gap(target.depth, found.head, found.tail)]
    return next(iter(of_plan or fitting), None)


def _skip(target: Target, plan: str | None, folder: Path | None, head: str, sampler: Sampler) -> Drafting | None:
    wanted = SkipPlan.parse(plan, target.depth) if plan is not None else None
    if folder is not None:
        found: Sidecar | None = Sidecar.load(folder)
        assert found is not None
        found.base.check(base_of(target), str(folder))
        made_for: SkipPlan | None = SkipPlan.gap(target.depth, found.head, found.tail)
        if wanted not in (None, made_for):
            raise SkipSpecError(
                f"The sidecar {folder} bridges plan {found.head},{found.tail}, not {plan}; drop --plan or fit another."
            )
    else:
        found = find_sidecar(target, wanted)
        made_for = SkipPlan.gap(target.depth, found.head, found.tail) if found else None
    if wanted is None and made_for is None:
        return None
    scorer, name = choose_head(target, head, found, sampler)
    suffix = "" if name == "dense" else f"+{name}"
    if found is None or made_for is None or wanted not in (None, made_for):
        assert wanted is not None
        return Drafting(LayerSkip(wanted, head=scorer, sampler=sampler), f"skip({wanted.name}){suffix}")
    bridge = HVC.from_tensors(found.tensors, target.dtype, target.hidden_size).packed()
    mx.eval(bridge.parameters())
    return Drafting(LayerSkip(made_for, bridge, scorer, sampler), f"skip({made_for.name})+hvc{suffix}")
