"""The classifier's recipe beyond its training steps: prototypes."""

from pathlib import Path

import torch

from dubsar.configs.base import load
from dubsar.configs.schema import ClassifyConfig, shipped_config
from dubsar.pipelines.networks import load_classifier
from dubsar.pipelines.stages.classify import run


def test_prototypes_are_taken_at_the_end_and_load_with_the_weights(tmp_path: Path, data_root: Path) -> None:
    asked = ["model.prototypes={weight: 2.0, below: 3}"]
    config = load(shipped_config("debug/classify"), ClassifyConfig, tuple(asked))
    scores = run(config, tmp_path / "run")
    network, loaded, _ = load_classifier(tmp_path / "run" / "classify")
    assert loaded.model.prototypes == config.model.prototypes
    assert network.prototypes is not None
    assert network.prototypes.weight == 2.0
    seen, counting = network.prototypes.seen_C, network.prototypes.counts_C
    assert 0 < counting.sum() < seen.sum()  # 64 crops: some classes have three and more
    torch.testing.assert_close(network.prototypes.mean_CD.norm(dim=1), seen)
    assert scores["crops"] == 64
