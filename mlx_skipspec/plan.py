"""Which sub-blocks of which layers a draft runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mlx_skipspec.errors import SkipSpecError


@dataclass(frozen=True)
class SkipPlan:
    """The layers a draft keeps, as two independent sets: attention and MLP sub-blocks.

    A plan is *contiguous* when it keeps whole layers and all the skipped ones lie in one run. Then `before`, `gap` and
    `after` are that run and what surrounds it, and a bridge (HVC) can cast the hidden state across the gap.

    Args:
        depth: layers of the whole model.
        attention: indices of the layers whose attention a draft runs, ascending.
        mlp: indices of the layers whose MLP a draft runs, ascending.
        name: how people write it, e.g. `2,2`.

    Raises:
        SkipSpecError: an index lies outside the model, or nothing is skipped.
    """

    depth: int
    attention: tuple[int, ...]
    mlp: tuple[int, ...]
    name: str

    def __post_init__(self) -> None:
        outside = [i for i in (*self.attention, *self.mlp) if not 0 <= i < self.depth]
        if outside:
            raise SkipSpecError(f"SkipPlan keeps layer {outside[0]}, but the model has layers 0 to {self.depth - 1}.")
        if len(self.attention) == len(self.mlp) == self.depth:
            raise SkipSpecError(
                f"SkipPlan({self.name}) skips nothing in a {self.depth}-layer model; leave a layer out."
            )

    @classmethod
    def gap(cls, depth: int, head: int, tail: int) -> SkipPlan:
        """Keep the first `head` and the last `tail` layers: the thesis's contiguous internal gap."""
        _refuse_nothing(head, tail)
        if head + tail >= depth:
            raise SkipSpecError(
                f"SkipPlan(head={head}, tail={tail}) leaves no layer to skip in a {depth}-layer model; "
                f"need head + tail <= {depth - 1}."
            )
        return cls.keeping(depth, (*range(head), *range(depth - tail, depth)), f"{head},{tail}")

    @classmethod
    def early_exit(cls, depth: int, keep: int) -> SkipPlan:
        """Keep the first `keep` layers and go straight to the final norm (LayerSkip)."""
        return cls.gap(depth, keep, 0)

    @classmethod
    def late_start(cls, depth: int, keep: int) -> SkipPlan:
        """Keep the last `keep` layers, entered with the bare embedding."""
        return cls.gap(depth, 0, keep)

    @classmethod
    def periodic(cls, depth: int, keep: int) -> SkipPlan:
        """Keep `keep` layers spread evenly, the first layer always among them."""
        if not 1 <= keep < depth:
            raise SkipSpecError(f"SkipPlan.periodic(keep={keep}) needs 1 <= keep <= {depth - 1} in this model.")
        return cls.keeping(depth, (i * depth // keep for i in range(keep)), f"periodic-{keep}")

    @classmethod
    def keeping(cls, depth: int, layers: Iterable[int], name: str) -> SkipPlan:
        """Keep whole layers, any set of them."""
        kept = tuple(sorted(set(layers)))
        return cls(depth, kept, kept, name)

    @classmethod
    def masks(cls, depth: int, attention: Iterable[int], mlp: Iterable[int]) -> SkipPlan:
        """Keep attention and MLP sub-blocks separately (Draft & Verify, ACL 2024)."""
        attention, mlp = tuple(sorted(set(attention))), tuple(sorted(set(mlp)))
        return cls(depth, attention, mlp, f"masks-{len(attention)}a{len(mlp)}m")

    @classmethod
    def parse(cls, text: str, depth: int) -> SkipPlan:
        """Read `head,tail` as people write it on the command line."""
        return cls.gap(depth, *head_and_tail(text))

    @property
    def kept(self) -> tuple[int, ...]:
        """Layers of which a draft runs anything at all, ascending."""
        return tuple(sorted({*self.attention, *self.mlp}))

    @property
    def contiguous(self) -> bool:
        """Whole layers kept, one run of layers skipped."""
        skipped = [i for i in range(self.depth) if i not in self.kept]
        return self.attention == self.mlp and skipped == list(range(skipped[0], skipped[-1] + 1))

    @property
    def before(self) -> range:
        """Layers ahead of the gap."""
        return range(self._edges()[0])

    @property
    def skipped(self) -> range:
        """Layers of the gap."""
        return range(*self._edges())

    @property
    def after(self) -> range:
        """Layers behind the gap."""
        return range(self._edges()[1], self.depth)

    def _edges(self) -> tuple[int, int]:
        if not self.contiguous:
            raise SkipSpecError(f"SkipPlan({self.name}) has no single gap; only contiguous plans can be bridged.")
        skipped = [i for i in range(self.depth) if i not in self.kept]
        return skipped[0], skipped[-1] + 1


def head_and_tail(text: str) -> tuple[int, int]:
    """The two numbers of `head,tail`; whether they fit is known once the model's depth is.

    Raises:
        SkipSpecError: no model could be cut like that.
    """
    try:
        head, tail = (int(part) for part in text.split(","))
    except ValueError:
        raise SkipSpecError(f"The plan {text!r} is not two numbers; write --plan HEAD,TAIL, e.g. 2,2.") from None
    _refuse_nothing(head, tail)
    return head, tail


def _refuse_nothing(head: int, tail: int) -> None:
    if head < 0 or tail < 0 or head + tail < 1:
        raise SkipSpecError(
            f"SkipPlan(head={head}, tail={tail}) keeps no layer; need head >= 0, tail >= 0 and head + tail >= 1."
        )
