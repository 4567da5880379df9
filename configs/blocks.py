"""Config blocks that every stage shares: `Trainer`, `Optim`, `Efficiency`."""

from typing import Annotated, Literal

from pydantic import Field

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
    """Weight-decomposed low-rank adapters."""

    rank: Count = 16
    alpha: Count = 32
    targets: tuple[str, ...] = ("qkv", "proj")


class Efficiency(Block):
    """What every stage reads for speed and memory; **all levers off is the reference**.

    A lever that cannot act where it is asked for resolves to the next best and the run says so; with ``strict: true``
    that is an error instead. ``levers.json`` says what became of each (`dubsar.pipelines.levers.resolve`).
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
