"""What is asked of each lever when the suite proves the levers: every row of the table has at least one case."""

from dataclasses import dataclass
from typing import Any

from dubsar.pipelines.levers.table import STAGES


@dataclass(frozen=True)
class Case:
    """One lever as it is asked for.

    Attributes:
        lever: name of the row in the table.
        value: what is asked of it.
        beside: levers that it cannot act without.
        stages: where the case is tried; where a lever has nothing to act on, it has to be refused.
    """

    lever: str
    value: Any
    beside: tuple[tuple[str, Any], ...] = ()
    stages: frozenset[str] = STAGES

    @property
    def levers(self) -> dict[str, Any]:
        """What is asked for in all."""
        return {**dict(self.beside), self.lever: self.value}


CASES: tuple[Case, ...] = (
    Case("precision", "bf16"),
    Case("precision", "fp16"),
    # not detect: its layers differ, and compiling each for three tiers takes a minute and a half; it passes when asked
    # (`dubsar parity detect --levers compile`)
    Case("compile", "per_block", stages=frozenset({"transliterate"})),
    Case("compile", "full", stages=frozenset({"classify"})),
    Case("compile_mode", "max-autotune", (("compile", "full"),), frozenset({"classify"})),
    Case("attention", "sdpa"),
    Case("attention", "flash"),
    Case("attention", "flex"),
    Case("fused_optimizer", True),
    Case("packing", "bucket"),
    Case("packing", "pack"),
    Case("packing", "auto"),
    Case("ema", {"decay": 0.9}),
    Case("swa", {"from_fraction": 0.5}),
    Case("dora", {"rank": 4}),
    Case("checkpointing", "selective"),
    Case("checkpointing", "full"),
    Case("cuda_graphs", True),
    Case("channels_last", True),
    Case("liger", True),
)
