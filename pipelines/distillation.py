"""Learning from a finished classifier or an ensemble: what a teacher thinks of each crop, beside the true class.

    loss = (1 - w) * cross-entropy + w * T^2 * KL(teacher || student),   both at temperature T

The teacher sees the very crops that the student is taught by, augmented and mixed, and at its own side: a fixed answer
to another view of the sign would teach less (Beyer et al. 2022, "consistent"; long schedules are the "patient" half).

Sources: Hinton, Vinyals and Dean 2015, section 2 (the factor T^2 keeps the gradient's size as T changes); Beyer et al.
2022, "Knowledge distillation: a good teacher is patient and consistent".
"""

from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from dubsar.configs.blocks import Distill
from dubsar.configs.schema import ClassifyConfig
from dubsar.datasets.inventory import Inventory
from dubsar.models.ensemble import Classifier, SignEnsemble, resized
from dubsar.models.precision import at_least_float32
from dubsar.pipelines.networks import load_classifier


class Teacher:
    """A finished classifier that answers and never learns.

    It is no module, so that a system that holds one has no parameter more: none in its optimizer, its averages, its
    checkpoints or its weights. A copy of the system shares it.

    Args:
        network: in evaluation mode.
        side_px: of the crops that it was trained on; an ensemble sees to the sides of its members itself.
        settings: how much it counts, and at which temperature.
        provenance: what it is, for the student's model card.
    """

    def __init__(
        self, network: Classifier, side_px: int, settings: Distill, provenance: dict[str, Any] | None = None
    ) -> None:
        self.network = network.eval().requires_grad_(False)
        self.side_px, self.settings, self.provenance = side_px, settings, provenance or {}

    def __deepcopy__(self, _: dict[int, Any]) -> "Teacher":
        return self

    @torch.no_grad()
    def logits(self, pixels_BCHW: torch.Tensor) -> torch.Tensor:
        """Return what the teacher says (B, classes) of crops in 0-1, under the precision that is on."""
        if next(self.network.parameters()).device != pixels_BCHW.device:
            self.network.to(pixels_BCHW.device)
        shown = pixels_BCHW if isinstance(self.network, SignEnsemble) else resized(pixels_BCHW, self.side_px)
        return at_least_float32(self.network(shown))

    def blend(self, loss: torch.Tensor, logits_BC: torch.Tensor, pixels_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the student's loss with the teacher's share in it.

        Args:
            loss: cross-entropy.
            logits_BC: of the student, float32 and without logit adjustment: the teacher's are what reading uses too.
            pixels_BCHW: the crops that gave them.
        """
        weight, temperature = self.settings.weight, self.settings.temperature
        return (1 - weight) * loss + weight * distillation_loss(logits_BC, self.logits(pixels_BCHW), temperature)


def distillation_loss(student_BC: torch.Tensor, teacher_BC: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return T^2 * KL(teacher || student) at temperature T, the mean over crops, in nats."""
    logs = [(logits / temperature).log_softmax(1) for logits in (student_BC, teacher_BC)]
    return temperature**2 * F.kl_div(logs[0], logs[1], reduction="batchmean", log_target=True)


def load_teacher(config: ClassifyConfig, inventory: Inventory) -> Teacher | None:
    """Load the teacher that a config names; None where it names none.

    Raises:
        FileNotFoundError, CheckpointError: see `load_classifier`.
        InventoryMismatch: it was made for other sign classes.
        ValueError: it was trained on crops with more or less of a sign's surroundings.
    """
    if config.model.distill is None:
        return None
    path = Path(config.model.teacher)
    with torch.random.fork_rng(devices=[]):  # the student's first weights are drawn as if there were no teacher
        network, trained, file = load_classifier(path)
    inventory.require(file.card["inventory_hash"], f"model.teacher: {path}")
    if trained.data.context != config.data.context:
        raise ValueError(
            f"model.teacher: {path} was trained on crops with data.context={trained.data.context:g}, here it is "
            f"{config.data.context:g}; it sees the student's crops, so set data.context={trained.data.context:g}"
        )
    provenance = {"name": trained.name, "commit": file.card.get("commit", "unknown"), "sha256": file.card["sha256"]}
    return Teacher(network, trained.data.crop_px, config.model.distill, provenance)
