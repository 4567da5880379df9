"""Tell from what was seen of a training whether each lever acted: one function per lever, from facts to a verdict."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from dubsar.pipelines.levers.compiling import CompileCosts, Rehearsal
from dubsar.pipelines.levers.trace import Trace

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_UNFUSED_ATTENTION = "math"


@dataclass(frozen=True)
class Observation:
    """What was seen of one lever."""

    lever: str
    engaged: bool
    what: str


@dataclass(frozen=True)
class Layout:
    """How the examples of a batch were laid out: rectangles, whether they are packed, real ids, ids computed."""

    rectangles: int
    packed: bool
    real: int
    computed: int


@dataclass(frozen=True)
class Average:
    """The averaged weights at the end: their dtypes, updates, and whether they differ from the raw weights."""

    dtypes: frozenset[torch.dtype]
    updates: int
    differs: bool

    @property
    def float32(self) -> bool:
        """Whether all of it is kept in float32 at least."""
        return self.dtypes <= {torch.float32, torch.float64}


@dataclass(frozen=True)
class Adapters:
    """Trainable and all parameters, and those of the adapters, by whether a gradient other than 0 came."""

    trainable: int
    parameters: int
    moved: frozenset[str]
    unmoved: frozenset[str]


@dataclass
class Sight:
    """The facts collected from the watched steps; what was not looked at is None."""

    trace: Trace = field(default_factory=Trace)
    parameter_dtypes: frozenset[torch.dtype] = frozenset()
    loss_dtype: torch.dtype | None = None
    fused_flags: tuple[bool, ...] = ()
    layouts: list[Layout] = field(default_factory=list)
    costs: CompileCosts | None = None
    rehearsal: Rehearsal | None = None
    adapters: Adapters | None = None
    average: Average | None = None
    replays: int = 0


def judge(lever: str, resolved: Any, sight: Sight) -> Observation:
    """Return whether a lever acted, and what was seen of it.

    Args:
        lever: its name.
        resolved: what it should have become.
        sight: what was seen.
    """
    engaged, what = _JUDGES.get(lever, _nothing)(resolved, sight)
    return Observation(lever, engaged, what)


def _nothing(_: Any, __: Sight) -> tuple[bool, str]:
    return False, "nothing was seen of it"


def _precision(resolved: str, sight: Sight) -> tuple[bool, str]:
    wanted, found = _DTYPES[resolved], Counter(sight.trace.compute_dtypes())
    parameters, loss = _names(sight.parameter_dtypes), sight.loss_dtype
    what = (
        f"{found[wanted]} of {found.total()} matrix products and convolutions of a forward pass in {_name(wanted)}, "
        f"parameters {parameters}, loss {_name(loss)}"
    )
    wide = sight.parameter_dtypes | {loss} <= {torch.float32, torch.float64}
    return 2 * found[wanted] > found.total() and wide, what


def _compile(_: Any, sight: Sight) -> tuple[bool, str]:
    regions, costs = sight.trace.compiled_regions(), sight.costs
    if not regions:
        return False, "no compiled code ran"
    what = f"compiled code ran {regions} times in a forward pass"
    if costs is None or not costs.graphs:
        return True, f"{what}; compiled before in this process"
    return True, (
        f"{what}; {costs.graphs} graphs, {costs.breaks} graph breaks, {costs.recompiles} recompilations, "
        f"{costs.seconds:.1f} s to compile; {_break_even(costs.seconds, sight.rehearsal)}"
    )


def _break_even(seconds: float, rehearsal: Rehearsal | None) -> str:
    if rehearsal is None:
        return "break-even unknown (no eager step was timed)"
    eager, compiled = rehearsal.eager_seconds, rehearsal.compiled_seconds
    what = f"forward and backward of a batch {1000 * compiled:.1f} ms, eager {1000 * eager:.1f} ms"
    if eager <= compiled:
        return f"{what}: never breaks even"
    return f"{what}: breaks even after {max(1, round(seconds / (eager - compiled)))} batches"


def _compile_mode(resolved: str, sight: Sight) -> tuple[bool, str]:
    graphs, templates = (
        sight.trace.count("cudaGraphLaunch"),
        sight.trace.count("triton_tem") + sight.trace.count("cpp_gemm"),
    )
    if resolved == "reduce-overhead":
        return graphs > 0, f"{graphs} CUDA graphs launched in a step"
    tuned = sight.costs.tuned if sight.costs else 0
    what = f"{templates} kernels from templates in a step, {tuned} tuned, {graphs} CUDA graphs launched"
    return templates + tuned + graphs > 0, what


def _attention(resolved: str, sight: Sight) -> tuple[bool, str]:
    found, note = sight.trace.attention_kernels(), ""
    if not found and sight.rehearsal is not None:
        found, note = (
            sight.rehearsal.eager.attention_kernels(),
            ", which compiled code has merged with its surroundings",
        )
    if not found:
        return False, "eager: neither scaled_dot_product_attention nor FlexAttention was called"
    what = " + ".join(f"{count} x {kernel}" for kernel, count in sorted(found.items())) + " kernels" + note
    if _UNFUSED_ATTENTION in found:
        what += "; math is not fused: a bias that needs a gradient, the layout or the device allows no other"
    return resolved == "sdpa" or any(kernel.startswith(resolved) for kernel in found), what


def _fused_optimizer(_: Any, sight: Sight) -> tuple[bool, str]:
    flags, calls = sight.fused_flags, sight.trace.count("aten::_fused_adam")
    what = f"{sum(flags)} of {len(flags)} parameter groups are fused, {calls} calls of the fused kernel in a step"
    return bool(flags) and all(flags) and calls > 0, what


def _packing(resolved: str, sight: Sight) -> tuple[bool, str]:
    layouts = sight.layouts
    if not layouts:
        return False, "no batch of ids was seen"
    rectangles, packed = sum(x.rectangles for x in layouts) / len(layouts), all(x.packed for x in layouts)
    fill = sum(x.real for x in layouts) / sum(x.computed for x in layouts)
    several = any(x.rectangles > 1 for x in layouts)
    name = "packed rows" if packed else "rectangles of like length" if several else "one padded rectangle"
    what = f"{name}, {rectangles:.1f} rectangles a batch, {fill:.1%} of the ids real"
    return {"pack": packed, "bucket": several and not packed}.get(resolved, True), what


def _average(_: Any, sight: Sight) -> tuple[bool, str]:
    found = sight.average
    if found is None:
        return False, "no weights are averaged"
    what = (
        f"{found.updates} steps averaged in {_names(found.dtypes)}; "
        f"{'differs from' if found.differs else 'the same as'} the raw weights"
    )
    return found.float32 and found.updates > 1 and found.differs, what


def _dora(_: Any, sight: Sight) -> tuple[bool, str]:
    found = sight.adapters
    if found is None or not found.moved | found.unmoved:
        return False, "the network has no adapters"
    what = f"{found.trainable:,} of {found.parameters:,} parameters are trained"
    if found.unmoved:
        return False, f"{what}; no gradient came to {len(found.unmoved)} adapter weights: {_some(found.unmoved)}"
    return True, f"{what}; a gradient came to each of the {len(found.moved)} adapter weights"


def _checkpointing(_: Any, sight: Sight) -> tuple[bool, str]:
    count = sight.trace.recomputed()
    if count:
        return True, f"{count} calls of the forward pass are repeated in the backward pass"
    eager = sight.rehearsal.eager.recomputed() if sight.rehearsal else 0
    if eager:
        return (
            True,
            f"{eager} calls are repeated where the step runs eagerly; compiled code hides which of them it repeats",
        )
    return False, "the backward pass recomputes nothing"


def _channels_last(_: Any, sight: Sight) -> tuple[bool, str]:
    last, told = sight.trace.channels_last_share()
    return 0 < told < 1.1 * last, f"channels lie innermost in the inputs of {last} of {told} convolutions"


def _cuda_graphs(_: Any, sight: Sight) -> tuple[bool, str]:
    return sight.replays > 0, f"{sight.replays} CUDA graphs replayed"


_JUDGES: dict[str, Callable[[Any, Sight], tuple[bool, str]]] = {
    "precision": _precision,
    "compile": _compile,
    "compile_mode": _compile_mode,
    "attention": _attention,
    "fused_optimizer": _fused_optimizer,
    "packing": _packing,
    "ema": _average,
    "swa": _average,
    "dora": _dora,
    "checkpointing": _checkpointing,
    "channels_last": _channels_last,
    "cuda_graphs": _cuda_graphs,
}


def _name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")


def _names(dtypes: Iterable[torch.dtype]) -> str:
    return " and ".join(sorted(map(_name, dtypes))) or "none"


def _some(names: Iterable[str]) -> str:
    first, *rest = sorted(names)
    return first + (f" and {len(rest)} more" if rest else "")
