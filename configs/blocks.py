"""Config blocks that every stage shares: `Trainer`, `Optim`, `Efficiency`; and options of one stage."""

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from dubsar.configs.base import Block

Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]


class Trainer(Block):
    """How long, where, and how often: everything that Lightning's trainer is told.

    ``max_steps`` counts optimizer steps. ``threads`` limits CPU threads (0: all cores).
    """

    max_steps: Count
    val_every_steps: Count = 500
    checkpoint_every_minutes: Positive = 5.0
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    devices: Count = 1
    num_nodes: Count = 1
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    accumulate: Count = 1
    clip_norm: Annotated[float, Field(ge=0)] = 1.0
    seed: Natural = 0
    threads: Natural = 0
    workers: Natural = 0
    log_every_steps: Count = 25


class Optim(Block):
    """AdamW with linear warm-up and a schedule to zero; rates are per step, no scaling by batch size."""

    lr: Positive
    weight_decay: Annotated[float, Field(ge=0)] = 0.05
    betas: tuple[Fraction, Fraction] = (0.9, 0.98)
    warmup_steps: Natural = 100
    schedule: Literal["cosine", "linear", "constant"] = "cosine"


class Ema(Block):
    """Exponential moving average of the weights, kept in float32."""

    decay: Annotated[float, Field(gt=0, lt=1)] = 0.9998


class Swa(Block):
    """Stochastic weight averaging from a fraction of the run on."""

    from_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.75
    lr: Positive = 1e-5


class Dora(Block):
    """Low-rank adapters beside frozen weights; ``dora`` also learns the magnitude of each output channel.

    ``targets`` are names of layers such as ``qkv`` or ``wi_0``; without any, all matrices and kernels of the network's
    repeated blocks get an adapter: of a ViT qkv, proj, fc1 and fc2, of a ConvNeXt fc1 and fc2, of a ResNet its
    convolutions, of a MobileNet or EfficientNet the pointwise ones. The head is trained in full.
    """

    variant: Literal["dora", "lora"] = "dora"
    rank: Count = 16
    alpha: Count = 32
    dropout: Fraction = 0.0
    targets: tuple[str, ...] = ()


class Efficiency(Block):
    """What every stage reads for speed and memory; **all levers off is the reference**.

    A lever that cannot act where it is asked for resolves to the next best and the run says so; with ``strict: true``
    that is an error instead. ``levers.json`` says what became of each (`dubsar.pipelines.levers.resolve`). Levers that
    can never act together are refused here, with file and line; a lever stands behind those that it depends on.
    """

    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    compile: Literal["off", "per_block", "full"] = "off"
    compile_mode: Literal["default", "max-autotune", "reduce-overhead"] = "default"
    attention: Literal["eager", "sdpa", "flash", "flex"] = "eager"
    fused_optimizer: bool = False
    packing: Literal["off", "bucket", "pack", "auto"] = "off"
    ema: Ema | None = None
    swa: Swa | None = None
    dora: Dora | None = None
    checkpointing: Literal["off", "selective", "full"] = "off"
    cuda_graphs: bool = False
    channels_last: bool = False
    liger: bool = False
    strict: bool = False

    @field_validator("compile_mode")
    @classmethod
    def _a_mode_needs_compile(cls, mode: str, info: ValidationInfo) -> str:
        if mode != "default" and info.data.get("compile") == "off":
            raise ValueError("needs compile, which is off: set compile to per_block or full, or leave the mode out")
        return mode

    @field_validator("swa")
    @classmethod
    def _one_average(cls, swa: Swa | None, info: ValidationInfo) -> Swa | None:
        if swa is not None and info.data.get("ema") is not None:
            raise ValueError("conflicts with ema, which averages the weights already; keep one of the two")
        return swa


class LikePrototypes(Block):
    """Likeness to the mean of a class's training crops as evidence beside the head; the means are taken at the end."""

    weight: Positive = 0.67  # over the head's probabilities
    temperature: Positive = 0.05  # of the softmax over cosines
    below: Natural = 0  # for classes with fewer training crops than this; 0: for all


class Distill(Block):
    """Learning from a teacher's probabilities beside the true class: see `dubsar.pipelines.distillation`."""

    weight: Annotated[float, Field(gt=0, le=1)] = 0.5  # of the teacher; the rest is left to the true class
    temperature: Positive = 2.0  # above 1 the teacher's small probabilities count for more


def usable_for_byt5(efficiency: Efficiency, info: ValidationInfo) -> Efficiency:
    """Refuse what a ByT5 cannot do, as a validator of its config's field ``efficiency``.

    Raises:
        ValueError: float16, dropout under FlexAttention, or CUDA graphs over shapes that change.
    """
    model: Any = info.data.get("model")
    if efficiency.precision == "fp16":
        raise ValueError("precision 'fp16' is refused for ByT5: the T5 family diverges in float16; use bf16")
    if efficiency.attention == "flex" and model is not None and model.dropout:
        raise ValueError(f"attention 'flex' has no dropout, but model.dropout is {model.dropout:g}; set it to 0")
    if efficiency.cuda_graphs and efficiency.packing != "pack":
        raise ValueError(f"cuda_graphs needs one shape for all batches, but packing is {efficiency.packing!r}; pack")
    return efficiency
