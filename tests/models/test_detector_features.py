"""Features of a pretrained backbone in the detector: nothing changes at first, then they are learned from."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dubsar.configs.base import ConfigError, load
from dubsar.configs.blocks import Efficiency
from dubsar.configs.schema import DetectConfig, shipped_config
from dubsar.datasets.inventory import Inventory, SignClass
from dubsar.models.checkpoint import load_model, save_model
from dubsar.models.detector import Detector
from dubsar.models.ssl.encoder import SslEncoder
from dubsar.pipelines.export_detector import export_detector
from dubsar.pipelines.levers.apply import apply_levers, heads, repeated_blocks
from dubsar.pipelines.levers.resolve import resolve
from dubsar.pipelines.networks import build_detector, load_detector

VIT, CONVNEXT = "vit_small_patch16_dinov3", "convnext_tiny"
SMALL: dict[str, dict[str, Any]] = {
    VIT: {"embed_dim": 32, "depth": 2, "num_heads": 2, "img_size": 32},
    CONVNEXT: {"depths": (1, 1, 1, 1), "dims": (8, 8, 16, 24)},
}
BACKBONES = sorted(SMALL)
SIGNS = Inventory((SignClass("𒀀", "A"), SignClass("𒈾", "NA")))
TILES = torch.rand(2, 3, 64, 96, generator=torch.Generator().manual_seed(0))
BATCH = {
    "batch_idx": torch.tensor([0, 1]),
    "cls": torch.zeros(2, 1),
    "bboxes": torch.tensor([[0.3, 0.3, 0.2, 0.2], [0.6, 0.6, 0.2, 0.3]]),
    "weight_BHW": torch.ones(2, 16, 24),
}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def small(backbone: str) -> SslEncoder:
    return SslEncoder(backbone, backbone_args=SMALL[backbone])


def detector(backbone: str = VIT, *, frozen: bool = True) -> tuple[Detector, Detector]:
    """Return a detector with features, and YOLO without, of the same weights."""
    encoder = small(backbone)
    plain = Detector("n")
    featured = Detector("n", encoder=encoder, frozen=frozen)
    assert sorted(featured.net.load_state_dict(plain.net.state_dict(), strict=False).missing_keys) == sorted(
        key for key in featured.net.state_dict() if key.startswith("features.")
    )
    return featured, plain


def learned(network: Detector) -> Detector:
    """Let the features count, as they do after some steps."""
    assert network.features is not None
    torch.nn.init.normal_(network.features.projection.weight, generator=torch.Generator().manual_seed(1))
    return network


def step(network: Detector, pixels: torch.Tensor = TILES) -> torch.Tensor:
    loss = network.loss(network(pixels), BATCH)[0]
    loss.backward()
    return loss.detach()


def gradients(network: Detector) -> dict[str, torch.Tensor]:
    return {name: p.grad for name, p in network.named_parameters() if p.grad is not None}


def written(path: Path, backbone: str = VIT) -> Path:
    save_file({k: t.contiguous() for k, t in small(backbone).backbone_state().items()}, path / "w.safetensors")
    return path / "w.safetensors"


def config(weights: Path, backbone: str = VIT, *overrides: str) -> DetectConfig:
    arguments = str({k: list(v) if isinstance(v, tuple) else v for k, v in SMALL[backbone].items()}).replace("'", "")
    given = (f"backbone={backbone}", f"backbone_args={arguments}", f"weights={weights}")
    return load(shipped_config("detect"), DetectConfig, (*(f"model.features.{o}" for o in given), *overrides))


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("backbone", BACKBONES)
def test_at_the_start_it_computes_what_it_computes_without(backbone: str, frozen: bool) -> None:
    ours, plain = (network.train() for network in detector(backbone, frozen=frozen))
    assert torch.equal(step(ours), step(plain))
    own = gradients(ours)
    assert all(torch.equal(gradient, own[name]) for name, gradient in gradients(plain).items())
    assert torch.equal(ours.eval().detect(TILES), plain.eval().detect(TILES))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(ours.detect(TILES), plain.detect(TILES))


def test_what_the_backbone_sees_is_added_in_its_place() -> None:
    ours = learned(detector()[0]).eval()
    assert ours.features is not None
    encoder, projection = ours.features.encoder, ours.features.projection
    map_BCHW = torch.randn(2, 128, 8, 12)
    seen = encoder(TILES)
    assert seen.grid == (4, 6)
    patches = seen.patches_BND.reshape(2, 4, 6, 32).permute(0, 3, 1, 2)
    stretched = torch.nn.functional.interpolate(patches, (8, 12), mode="bilinear")
    wanted = map_BCHW + torch.einsum("bdhw,cd->bchw", stretched, projection.weight[:, :, 0, 0])
    torch.testing.assert_close(ours.features(TILES, map_BCHW), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_a_frozen_backbone_is_left_as_it_is_and_the_projection_learns(backbone: str) -> None:
    network = detector(backbone)[0].eval().train()
    assert network.features is not None
    assert not any(module.training for module in network.features.encoder.modules())
    assert network.features.projection.training
    before = copy.deepcopy(network.features.state_dict())
    optimizer = torch.optim.AdamW([p for p in network.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        step(network)
        optimizer.step()
    changed = {k for k, t in network.features.state_dict().items() if not torch.equal(t, before[k])}
    assert changed == {"projection.weight"}
    assert all(p.grad is None for p in network.features.encoder.parameters())


@pytest.mark.parametrize("backbone", BACKBONES)
def test_a_backbone_that_is_not_frozen_is_trained_in_all_its_parts(backbone: str) -> None:
    network = learned(detector(backbone, frozen=False)[0]).train()
    assert network.features is not None
    assert network.features.encoder.training
    step(network)
    idle = [n for n, p in network.named_parameters() if p.requires_grad and p.grad is None]
    assert idle == []  # or training on several devices waits for them
    first = "net.features.encoder.net." + {VIT: "patch_embed.proj.weight", CONVNEXT: "stem.0.weight"}[backbone]
    assert gradients(network)[first].any()


def test_a_copy_has_a_backbone_of_its_own() -> None:
    network = learned(detector()[0]).eval()
    copied = copy.deepcopy(network)
    assert torch.equal(copied.detect(TILES), network.detect(TILES))
    assert copied.features is not None
    torch.nn.init.zeros_(copied.features.projection.weight)
    assert not torch.equal(copied.detect(TILES), network.detect(TILES))


def test_it_trains_in_bfloat16_and_channels_last() -> None:
    network = learned(detector()[0]).train()
    wanted = step(copy.deepcopy(network))
    apply_levers(network, resolve(Efficiency(channels_last=True), "detect", cuda=False))
    with torch.autocast("cpu", torch.bfloat16):
        loss = step(network, TILES.contiguous(memory_format=torch.channels_last))
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, wanted, rtol=0.05, atol=0)
    assert network.features is not None
    gradient = network.features.projection.weight.grad
    assert gradient is not None
    assert gradient.any()


@pytest.mark.parametrize("format_", [torch.contiguous_format, torch.channels_last])
def test_the_map_keeps_its_layout_in_memory(format_: torch.memory_format) -> None:
    features = learned(detector()[0]).features
    assert features is not None
    map_BCHW = torch.zeros(2, 128, 8, 12).contiguous(memory_format=format_)
    assert features(TILES, map_BCHW).stride() == map_BCHW.stride()


def test_levers_reach_a_backbone_that_is_trained_and_leave_a_frozen_one() -> None:
    frozen, trained = detector()[0], detector(frozen=False)[0]
    assert len(repeated_blocks(trained)) == len(repeated_blocks(frozen)) + 2
    assert heads(frozen)[1] is frozen.features.projection  # type: ignore[union-attr]
    plain = copy.deepcopy(learned(trained)).train()
    apply_levers(trained.train(), resolve(Efficiency(checkpointing="full"), "detect", cuda=False))
    losses = []
    for network in (plain, trained):
        torch.manual_seed(3)  # rotary positions are stretched at random
        losses.append(step(network))
    assert torch.equal(*losses)
    own = gradients(trained)
    assert all(torch.equal(gradient, own[name]) for name, gradient in gradients(plain).items())


@pytest.mark.slow
def test_adapters_leave_a_frozen_backbone_alone_and_train_the_projection() -> None:
    network = detector()[0]
    asked = Efficiency.model_validate({"dora": {"variant": "lora", "rank": 2}})
    apply_levers(network, resolve(asked, "detect", cuda=False))
    inside = {n: p.requires_grad for n, p in network.net.features.named_parameters()}
    assert [name for name, trained in inside.items() if trained] == ["projection.weight"]


def test_built_from_a_config_yolo_starts_with_the_weights_that_it_has_without(tmp_path: Path) -> None:
    wanted = written(tmp_path)
    networks = []
    for settings in (config(wanted), load(shipped_config("detect"), DetectConfig)):
        torch.manual_seed(5)
        networks.append(build_detector(settings, 2))
    ours, plain = networks
    own = ours.state_dict()
    assert all(torch.equal(tensor, own[name]) for name, tensor in plain.state_dict().items())
    assert all(torch.equal(t, own[f"net.features.encoder.net.{name}"]) for name, t in load_file(wanted).items())


@pytest.mark.parametrize("backbone", BACKBONES)
def test_a_trained_detector_is_read_without_the_backbones_own_file(tmp_path: Path, backbone: str) -> None:
    weights = written(tmp_path, backbone)
    settings = config(weights, backbone)
    network = learned(build_detector(settings, len(SIGNS))).eval()
    card = {"stage": "detect", "config": settings.model_dump(mode="json"), "inventory": SIGNS.to_list()}
    save_model(tmp_path / "run" / "detect", network.state_dict(), {**card, "inventory_hash": SIGNS.hash})
    weights.unlink()
    with pytest.raises(FileNotFoundError, match="no such weights"):
        build_detector(settings, len(SIGNS))
    again, read, file = load_detector(tmp_path / "run")
    assert read == settings
    assert torch.equal(again.detect(TILES), network.detect(TILES))
    assert again.features is not None
    assert again.features.frozen
    assert not any(p.requires_grad for p in again.features.encoder.parameters())
    assert file.state.keys() == load_model(tmp_path / "run", "detect").state.keys() == network.state_dict().keys()
    with pytest.raises(ValueError, match=r"^model\.features: .* Ultralytics cannot express; export one"):
        export_detector(tmp_path / "run", tmp_path / "out.pt")
    assert not (tmp_path / "out.pt").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("data.tile=456",), r"^data\.tile is 456, expected a multiple of 16, the px per patch of model\.features"),
        (("model.features.backbone=vit_smal_patch16_dinov3",), r"^in model\.features: .*near it are .*vit_small_patch"),
        (("model.features.backbone_args.embed_dim=48",), r"^in model\.features: .*w\.safetensors: width: 32 in the "),
        (("model.features.weights=w.pth",), r"^in model\.features: w\.pth: .*\.safetensors only"),
    ],
)
def test_what_cannot_be_built_is_refused(tmp_path: Path, change: tuple[str, ...], message: str) -> None:
    settings = config(written(tmp_path), VIT, *change)
    with pytest.raises(ValueError, match=message):
        build_detector(settings, 2)


def test_tiles_hold_whole_patches_and_another_size_is_refused_at_the_latest_when_it_comes() -> None:
    network: Callable[[torch.Tensor], Any] = detector(CONVNEXT)[0].train()
    with pytest.raises(ValueError, match=r"crops are 64 x 80 px, expected multiples of the stride of 32 px"):
        network(torch.zeros(1, 3, 64, 80))


def test_features_of_a_config_need_a_backbone_and_its_weights() -> None:
    assert load(shipped_config("detect"), DetectConfig).model.features is None
    for overrides, message in (
        (("backbone=convnext_tiny",), "'model.features.weights' is missing"),
        (("backbone=convnext_tiny", "weights=''"), "'model.features.weights' is '': String should have at least 1"),
        (("backbone=convnext_tiny", "weights=w", "frosen=true"), r"'model.features.frosen' \(did you mean 'frozen'"),
    ):
        with pytest.raises(ConfigError, match=message):
            load(shipped_config("detect"), DetectConfig, tuple(f"model.features.{o}" for o in overrides))
