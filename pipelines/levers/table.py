"""The levers, one row each: what a stage may be asked to do for speed or memory, and of which exactness class it is.

Classes: B bitwise, A the same function with other rounding, P precision changes, S another random draw, M another model
or estimator. The tolerance is what the parity tiers allow: for A the relative error in float64, for P the error as a
multiple of the reference's own; B has to be equal, and S and M are judged by their outcome, so that they have none.
"""

from dataclasses import dataclass

STAGES = frozenset({"pretrain", "classify", "detect", "transliterate"})
_AVERAGED = frozenset({"classify", "detect", "transliterate"})
_IS_AVERAGE = "the teacher, which is what is kept, is an average of the weights already"
_NETWORK = "dubsar.pipelines.levers.apply:"
_TRAINER = "dubsar.pipelines.training:build_trainer"


@dataclass(frozen=True)
class Lever:
    """One field of the ``efficiency`` block.

    Attributes:
        exactness: its class, or two where it has two effects.
        tolerance: of its class, see above; None: none.
        stages: where it has something to act on; ``elsewhere`` is the reason why it is refused outside of them.
        off: the value that stands for the reference.
        requires: levers without which it cannot act.
        conflicts: levers beside which it cannot act; the config refuses both together.
        invalidates: levers whose measurements are to be taken again when this one changes.
        apply: where it acts, as ``module:name``.
        unavailable: the reason why it is refused wherever it is asked for.
    """

    name: str
    exactness: str
    apply: str = ""
    off: object = False
    tolerance: float | None = None
    stages: frozenset[str] = STAGES
    requires: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    invalidates: tuple[str, ...] = ()
    elsewhere: str = ""
    unavailable: str = ""


LEVERS: tuple[Lever, ...] = (
    Lever(
        "precision",
        "P",
        _TRAINER,
        off="fp32",
        tolerance=3.0,
        invalidates=("compile", "compile_mode", "attention", "cuda_graphs", "channels_last"),
    ),
    Lever(
        "compile",
        "A",
        _NETWORK + "compile_network",
        off="off",
        tolerance=1e-10,
        invalidates=("compile_mode", "cuda_graphs", "checkpointing"),
    ),
    Lever("compile_mode", "A", _NETWORK + "compile_network", off="default", tolerance=1e-10, requires=("compile",)),
    Lever(
        "attention",
        "A",
        "dubsar.pipelines.networks:build_byt5",
        off="eager",
        tolerance=1e-10,
        stages=frozenset({"pretrain", "transliterate"}),
        invalidates=("packing", "compile"),
        elsewhere="timm's and Ultralytics' attention layers choose their kernel themselves",
    ),
    Lever("fused_optimizer", "A", "dubsar.pipelines.optim:build_optimizer", tolerance=1e-10),
    Lever(
        "packing",
        "A+S",
        "dubsar.pipelines.stages.transliterate:LineStream",
        off="off",
        tolerance=1e-10,
        stages=frozenset({"transliterate"}),
        invalidates=("compile", "cuda_graphs"),
    ),
    Lever("ema", "M", _TRAINER, off=None, stages=_AVERAGED, conflicts=("swa",), elsewhere=_IS_AVERAGE),
    Lever("swa", "M", _TRAINER, off=None, stages=_AVERAGED, conflicts=("ema",), elsewhere=_IS_AVERAGE),
    Lever(
        "dora",
        "M",
        "dubsar.models.adapters:add_adapters",
        off=None,
        stages=frozenset({"classify", "transliterate"}),
        invalidates=("compile", "fused_optimizer", "checkpointing", "cuda_graphs"),
        elsewhere="weights that start at random, or that are to become others, are not to be frozen",
    ),
    Lever("checkpointing", "B", _NETWORK + "checkpoint_blocks", off="off", invalidates=("compile",)),
    Lever("cuda_graphs", "B", _NETWORK + "compile_network"),
    Lever(
        "channels_last",
        "A",
        _NETWORK + "apply_levers",
        tolerance=1e-10,
        stages=frozenset({"pretrain", "classify", "detect"}),
        elsewhere="a T5 has no pictures, so no channels",
    ),
    Lever("liger", "A", unavailable="Liger has no T5 module, and a vocabulary of 384 leaves it nothing to save"),
)
BY_NAME: dict[str, Lever] = {lever.name: lever for lever in LEVERS}
