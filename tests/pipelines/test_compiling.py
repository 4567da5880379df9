"""What compiling costs and gains is measured, and compiled code is told from code that is not."""

from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from dubsar.pipelines.levers.compiling import rehearse
from dubsar.pipelines.levers.judge import Observation
from dubsar.pipelines.levers.observe import Observer
from dubsar.pipelines.levers.resolve import Resolution, Resolved
from dubsar.pipelines.levers.table import LEVERS


class Attending(nn.Module):
    """A layer that may be recomputed, and attention with a bias that needs a gradient."""

    def __init__(self, *, again: bool = False, breaks: bool = False) -> None:
        super().__init__()
        self.layer, self.bias_QK = nn.Linear(4, 4), nn.Parameter(torch.zeros(8, 8))
        self.again, self.breaks = again, breaks

    def block(self, x_B1TC: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x_B1TC))

    def forward(self, x_B1TC: torch.Tensor) -> torch.Tensor:
        if self.breaks:
            torch._dynamo.graph_break()
        x_B1TC = checkpoint(self.block, x_B1TC, use_reentrant=False) if self.again else self.block(x_B1TC)
        return nn.functional.scaled_dot_product_attention(x_B1TC, x_B1TC, x_B1TC, attn_mask=self.bias_QK)


class System(L.LightningModule):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.network = Attending(**options)

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return self.network(batch).square().sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def seen(
    folder: Path, *, steps: int = 4, compiled: bool = True, on: Any = None, **options: Any
) -> dict[str, Observation]:
    """Train with these levers on and return what was seen of them."""
    on = on or {"compile": "full"}
    rows = [Resolution(row.name, row.exactness, v := on.get(row.name, row.off), v) for row in LEVERS]
    observer, system = Observer(Resolved(tuple(rows))), System(**options)
    if compiled:
        system.network.compile(backend="aot_eager")
    trainer = L.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        max_steps=steps,
        callbacks=[observer],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(system, DataLoader(torch.ones(2 * steps, 1, 8, 4), batch_size=2))
    return observer.observations


def test_compiled_code_is_seen_to_run(tmp_path: Path) -> None:
    torch.compiler.reset()
    found = seen(tmp_path)["compile"]
    assert found.engaged
    assert found.what.startswith("compiled code ran 1 times in a forward pass; 1 graphs, 0 graph breaks, 0 recompilati")
    assert "never breaks even" in found.what or "breaks even after" in found.what
    again = seen(tmp_path)["compile"]
    assert again.what == "compiled code ran 1 times in a forward pass; compiled before in this process"
    torch.compiler.reset()
    assert "break-even unknown (no eager step was timed)" in seen(tmp_path, steps=2)["compile"].what
    assert seen(tmp_path, compiled=False)["compile"] == Observation("compile", False, "no compiled code ran")


def test_graph_breaks_are_counted(tmp_path: Path) -> None:
    torch.compiler.reset()
    what = seen(tmp_path, breaks=True)["compile"].what
    assert " 1 graph breaks" in what


def test_inside_compiled_code_kernels_and_recomputation_are_told_from_the_eager_step(tmp_path: Path) -> None:
    on = {"compile": "full", "attention": "sdpa", "checkpointing": "full"}
    found = seen(tmp_path, again=True, on=on)
    assert all(o.engaged for o in found.values())
    assert found["attention"].what.startswith("1 x math kernels")
    assert not seen(tmp_path, again=False, on=on)["checkpointing"].engaged  # the negative control


def test_on_several_devices_nothing_is_rehearsed() -> None:
    class Two:
        world_size = 2

    assert rehearse(Two(), System(), torch.zeros(1), 0) is None  # type: ignore[arg-type]
