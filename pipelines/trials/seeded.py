"""Several configs trained with the same seeds: the photographs are read once for all that cut the same crops."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dubsar.configs.schema import ClassifyConfig, StageConfig
from dubsar.datasets.sources import data_root, require_outside_data
from dubsar.pipelines.parity.arms import NEVER, Arm, arm_file, train_arm, with_settings
from dubsar.pipelines.stages import classify

# settings of `data` that change what is drawn from the crops, not how they are cut
_NOT_CUT = frozenset(
    {"batch_size", "sampler", "balance_power", "synthetic_fraction", "label_fraction", "first_px", "font", "cache"}
)


class CropShelf:
    """The crops of train and dev that were cut last."""

    def __init__(self) -> None:
        self._held: tuple[dict[str, Any], tuple[classify.Crops, classify.Crops]] | None = None

    def take(self, config: ClassifyConfig) -> tuple[classify.Crops, classify.Crops]:
        """Return what `classify.prepare` gives.

        Raises:
            ValueError: see there.
        """
        cut = config.data.model_dump(exclude=set(_NOT_CUT))
        if self._held is None or self._held[0] != cut:
            self._held = None  # two of them may not fit into memory
            whole = config.model_copy(update={"data": config.data.model_copy(update={"label_fraction": 1.0})})
            self._held = cut, classify.prepare(whole, data_root())
        train, dev = self._held[1]
        return classify.draw_share(train, config.data.label_fraction, config.trainer.seed), dev


def train_seeds(configs: Mapping[str, StageConfig], folder: Path, seeds: int) -> dict[str, list[Arm]]:
    """Train configs seed by seed, so that what the machine does meanwhile meets all, and score each on dev.

    Args:
        configs: by name; of ``classify``.
        folder: below which each training has its own; finished ones are used again.
        seeds: trainings of each config; the first seed is the config's own.

    Returns:
        The trainings by name, in the order of seeds.

    Raises:
        ValueError: another stage, fewer than two seeds, the folder lies in the data folder, or the data cannot be used.
    """
    require_outside_data(folder, "--out")
    if seeds < 2:
        raise ValueError("--seeds is 1: one seed shows no spread; give at least two, better three")
    shelf, arms = CropShelf(), {name: list[Arm]() for name in configs}
    for seed in range(seeds):
        for name, config in configs.items():
            if not isinstance(config, ClassifyConfig):
                raise ValueError(f"{name} is a config of {config.stage}, expected classify: only that is tried so far")
            seeded = with_settings(config, seed=config.trainer.seed + seed, val_every_steps=NEVER)
            finished = arm_file(seeded, name, folder).exists()
            prepared = None if finished else shelf.take(seeded)  # type: ignore[arg-type]
            arms[name].append(train_arm(seeded, name, folder, prepared=prepared))
    return arms
