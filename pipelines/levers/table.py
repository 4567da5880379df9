"""The levers, one row each: what a stage may be asked to do for speed or memory, and of which exactness class it is.

Classes: B bitwise, A the same function with other rounding, P precision changes, S another random draw, M another model
or estimator. ``unavailable`` is the reason why a lever is refused wherever it is asked for, ``elsewhere`` why it is
refused outside of its stages.
"""

from dataclasses import dataclass

STAGES = frozenset({"classify", "detect", "transliterate"})


@dataclass(frozen=True)
class Lever:
    """One field of the ``efficiency`` block."""

    name: str
    exactness: str
    stages: frozenset[str] = STAGES
    off: object = False
    unavailable: str = ""
    elsewhere: str = ""


LEVERS: tuple[Lever, ...] = (
    Lever("precision", "P", off="fp32"),
    Lever("compile", "A", off="off"),
    Lever("compile_mode", "A", off="default"),
    Lever(
        "attention",
        "A",
        frozenset({"transliterate"}),
        off="eager",
        elsewhere="timm's and Ultralytics' attention layers choose their kernel themselves",
    ),
    Lever("fused_optimizer", "A"),
    Lever("packing", "A+S", frozenset({"transliterate"}), off="off"),
    Lever("ema", "M", off=None),
    Lever("swa", "M", off=None),
    Lever("dora", "M", off=None, unavailable="adapters are not built yet: train all weights"),
    Lever("checkpointing", "B", frozenset({"transliterate", "classify"}), off="off"),
    Lever("cuda_graphs", "B", unavailable="no static-shape path is built yet: eager kernels run"),
    Lever("channels_last", "A", frozenset({"classify", "detect"})),
    Lever("liger", "A", unavailable="Liger has no T5 module, and a vocabulary of 384 leaves it nothing to save"),
)
