"""Each lever but one has a judge, nothing is taken on trust, and layouts are read from the batches."""

from typing import Any

import torch

from dubsar.configs.blocks import Efficiency
from dubsar.pipelines.levers.judge import Layout, Sight, judge
from dubsar.pipelines.levers.observe import Observer, layout_of
from dubsar.pipelines.levers.resolve import Resolution, Resolved
from dubsar.pipelines.levers.table import LEVERS

Batch = dict[str, torch.Tensor]


def levers(**on: Any) -> Resolved:
    """All levers off but these."""
    return Resolved(tuple(Resolution(row.name, row.exactness, v := on.get(row.name, row.off), v) for row in LEVERS))


def test_only_liger_which_can_never_act_has_no_judge() -> None:
    blind = {row.name for row in LEVERS if judge(row.name, "bf16", Sight()).what == "nothing was seen of it"}
    assert blind == {"liger"}
    assert not any(judge(row.name, "bf16", Sight()).engaged for row in LEVERS if row.name != "packing")


def test_efficiency_of_a_config_is_what_is_watched() -> None:
    """Fields that are on in no way (strict) are none of the watched levers."""
    assert set(Efficiency.model_fields) - {"strict"} == {row.name for row in LEVERS}
    assert Observer(levers(ema={"decay": 0.9}, precision="bf16")).on == {"ema": {"decay": 0.9}, "precision": "bf16"}


def rectangle(lengths: list[int], width: int, *, packed: bool = False) -> Batch:
    source_BL = torch.zeros(len(lengths), width, dtype=torch.long)
    target_BT = torch.full((len(lengths), width), -100)
    for row, length in enumerate(lengths):
        source_BL[row, :length] = 70
        target_BT[row, :length] = 70
    documents = {"source_documents_BL": source_BL, "decoder_documents_BT": target_BT} if packed else {}
    return {"source_BL": source_BL, "decoder_BT": target_BT, "target_BT": target_BT, **documents}


def test_layout_and_fill_are_read_from_the_batches() -> None:
    padded, packed = rectangle([2, 8], 8), rectangle([7, 8], 8, packed=True)
    assert layout_of(padded) == layout_of([padded]) == Layout(1, False, 20, 32)
    assert layout_of([padded, packed]) == Layout(2, False, 50, 64)
    assert layout_of([packed]) == Layout(1, True, 30, 32)
    assert layout_of({"pixels_BCHW": torch.zeros(1)}) is None

    def said(resolved: str, *batches: list[Batch]) -> tuple[bool, str]:
        found = judge("packing", resolved, Sight(layouts=[x for b in batches if (x := layout_of(b))]))
        return found.engaged, found.what

    one = "one padded rectangle, 1.0 rectangles a batch, 62.5% of the ids real"
    assert said("pack", [packed]) == (True, "packed rows, 1.0 rectangles a batch, 93.8% of the ids real")
    assert said("pack", [padded]) == said("bucket", [padded]) == (False, one)
    assert said("auto", [padded]) == (True, one)
    two = said("bucket", [padded, rectangle([3, 3], 3)], [padded])
    assert two == (True, "rectangles of like length, 1.5 rectangles a batch, 68.4% of the ids real")
    assert said("bucket", [packed])[0] is False
    assert said("auto") == (False, "no batch of ids was seen")
