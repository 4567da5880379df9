"""Levers on the network: blocks are found, recomputation is bitwise, compiled code stays compiled, names stay."""

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from dubsar.configs.base import load
from dubsar.configs.blocks import Efficiency
from dubsar.configs.schema import ClassifyConfig
from dubsar.models.backbones import SignClassifier
from dubsar.models.detector import Detector
from dubsar.models.transliterator import Size, build_transliterator, transliterate
from dubsar.pipelines.levers.apply import apply_levers, heads, repeated_blocks
from dubsar.pipelines.levers.resolve import Resolved, resolve, resolve_config
from dubsar.pipelines.stages import classify

DEBUG = Path(__file__).resolve().parents[3] / "configs" / "debug" / "classify.yaml"
PIXELS = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
TILES = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
IDS = {"input_ids": torch.tensor([[262, 70, 71, 263, 80, 1]]), "decoder_input_ids": torch.tensor([[0, 262, 71, 263]])}


def levers(stage: str, **asked: Any) -> Resolved:
    return resolve(Efficiency.model_validate(asked, strict=False), stage, cuda=False)


def classifier(backbone: str, **options: Any) -> SignClassifier:
    return SignClassifier(backbone, 3, drop_rate=0.1, drop_path_rate=0.2, backbone_args=options)


def byt5(layers: int = 2) -> Any:
    return build_transliterator(Size(32, 16, 64, 2, layers, layers, 0.1), "sdpa")


def of_pixels(network: Any) -> torch.Tensor:
    return network(PIXELS).square().sum()  # type: ignore[no-any-return]


def of_tiles(network: Any) -> torch.Tensor:
    batch = {
        "batch_idx": torch.tensor([0, 1]),
        "cls": torch.zeros(2, 1),
        "bboxes": torch.tensor([[0.3, 0.3, 0.2, 0.2], [0.6, 0.6, 0.2, 0.3]]),
        "weight_BHW": torch.ones(2, 16, 16),
    }
    return network.loss(network(TILES), batch)[0]  # type: ignore[no-any-return]


def of_ids(network: Any) -> torch.Tensor:
    return network(**IDS).logits.square().sum()  # type: ignore[no-any-return]


# name: stage, network, loss, number of blocks
NETWORKS: dict[str, tuple[str, Callable[[], Any], Callable[[Any], torch.Tensor], int]] = {
    "resnet": ("classify", lambda: classifier("resnet10t"), of_pixels, 4),
    "efficientnet": ("classify", lambda: classifier("efficientnet_b0"), of_pixels, 16),
    "convnext": ("classify", lambda: classifier("convnextv2_atto"), of_pixels, 12),
    "vit": ("classify", lambda: classifier("vit_tiny_patch16_dinov3_qkvb", img_size=32, depth=2), of_pixels, 2),
    "yolo": ("detect", lambda: Detector("n"), of_tiles, 20),
    "byt5": ("transliterate", byt5, of_ids, 4),
}


def step(network: Any, loss_of: Callable[[Any], torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return loss, gradients and buffers of one training step from a fixed seed."""
    network.train()
    network.zero_grad()
    torch.manual_seed(1)
    loss = loss_of(network)
    loss.backward()
    gradients = {n: p.grad.clone() for n, p in network.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), **gradients, **{n: b.clone() for n, b in network.named_buffers()}}


def differing(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> list[str]:
    assert list(one) == list(two)
    return [name for name, tensor in one.items() if not torch.equal(tensor, two[name])]


def forwards(network: Any) -> list[int]:
    """Count, from now on, how often a layer inside of the first block runs."""
    counted = [0]

    def count(*_: Any) -> None:
        counted[0] += 1

    next(m for m in list(repeated_blocks(network)[0].modules())[1:] if not list(m.children())).register_forward_hook(
        count
    )
    return counted


@pytest.mark.parametrize("how", ["full", "selective"])
@pytest.mark.parametrize("name", NETWORKS)
def test_checkpointing_is_bitwise_with_dropout_and_batch_norms(name: str, how: str) -> None:
    stage, make, loss_of, blocks = NETWORKS[name]
    torch.manual_seed(0)
    plain = make()
    network = copy.deepcopy(plain)
    assert len(repeated_blocks(network)) == blocks
    apply_levers(network, levers(stage, checkpointing=how))
    once, twice = forwards(plain), forwards(network)
    wanted = step(plain, loss_of)
    assert differing(step(network, loss_of), wanted) == []
    assert (once, twice) == ([1], [2])
    assert list(network.state_dict()) == list(plain.state_dict())
    copied = copy.deepcopy(network)  # as an average of the weights does
    own = repeated_blocks(copied)[0]
    assert own.forward.args[0].__self__ is own
    with torch.no_grad():
        loss_of(network)
    assert twice == [3]


def test_recomputing_batch_norms_as_usual_would_count_each_batch_twice() -> None:
    """Negative control: PyTorch's checkpoint alone keeps loss and gradients, but not the running statistics."""
    torch.manual_seed(0)
    plain = classifier("resnet10t")
    network = copy.deepcopy(plain)
    for block in repeated_blocks(network):
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    off = differing(step(network, of_pixels), step(plain, of_pixels))
    assert {name.rpartition(".")[2] for name in off} == {"running_mean", "running_var", "num_batches_tracked"}


def test_selective_keeps_what_is_dear() -> None:
    """A convolution that is kept is not computed again."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        convolutions = 0

        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.convolutions += operator is torch.ops.aten.convolution.default
            return operator(*args, **(kwargs or {}))

    counts = {}
    for how in ("off", "selective", "full"):
        network = classifier("resnet10t")
        apply_levers(network, levers("classify", checkpointing=how))
        with Count() as count:
            step(network, of_pixels)
        counts[how] = count.convolutions
    assert counts["off"] == counts["selective"] < counts["full"]


def test_a_network_without_blocks_is_refused() -> None:
    network = SignClassifier("regnety_002", 3)
    for asked in ({"checkpointing": "full"}, {"compile": "per_block"}):
        with pytest.raises(ValueError, match=rf"efficiency\.{next(iter(asked))}: this network has no repeated blocks"):
            apply_levers(network, levers("classify", **asked))


@pytest.mark.parametrize("name", ["vit", "byt5"])
def test_compile_and_recomputation_go_together_without_a_graph_break(name: str) -> None:
    stage, _, loss_of, _ = NETWORKS[name]
    torch.manual_seed(0)
    tiny = {"img_size": 32, "embed_dim": 32, "num_heads": 2, "depth": 1}
    plain = classifier("vit_tiny_patch16_224", **tiny) if name == "vit" else byt5(layers=1)
    wanted = step(copy.deepcopy(plain), loss_of)
    network = copy.deepcopy(plain)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    apply_levers(network, levers(stage, compile="per_block", checkpointing="selective"), backend="aot_eager")
    found = step(network, loss_of)
    assert all((found[k] - wanted[k]).norm() <= 1e-5 * wanted[k].norm() for k in wanted)
    counters = torch._dynamo.utils.counters
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == len(repeated_blocks(network))
    assert list(network.state_dict()) == list(plain.state_dict())


def test_blocks_of_many_shapes_all_stay_compiled() -> None:
    """PyTorch runs what is beyond its limit of eight variants of one code uncompiled, and says so in a log only."""
    network = classifier("resnet18", channels=[4, 8, 12, 16])
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with torch._dynamo.config.patch(recompile_limit=8):
        apply_levers(network, levers("classify", compile="per_block"), backend="eager")
        for train in (True, False):
            network.train(train)(PIXELS)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 8


@pytest.mark.usefixtures("noise_root")
def test_crops_that_grow_stay_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A code of its own for each of seven sides would pass the limit, and what is beyond it runs uncompiled."""
    overrides = ("data.first_px=32", "data.crop_px=80", "data.synthetic_fraction=0", "efficiency.compile=per_block")
    config = load(DEBUG, ClassifyConfig, ("model.backbone=resnet18", *overrides))
    monkeypatch.setattr(classify, "apply_levers", functools.partial(apply_levers, backend="eager"))
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=8, fail_on_recompile_limit_hit=True):
        system, _ = classify.build(config, resolve_config(config))
        torch._dynamo.utils.counters.clear()
        for side in range(32, 81, 8):
            system.network(torch.rand(2, 3, side, side))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 3 * len(repeated_blocks(system.network))


def test_decoding_outside_of_compiled_code_gives_the_same_text() -> None:
    """A cache that grows by one id a step would be compiled anew at each: decoding has to force eager."""
    network = byt5().eval()
    lines = [(("𒀭", "𒌨"), "akk")]
    wanted = transliterate(network, lines)
    apply_levers(network, levers("transliterate", compile="per_block", checkpointing="full"), backend="eager")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with torch.compiler.set_stance("force_eager"):
        assert transliterate(network, lines) == wanted
    assert not torch._dynamo.utils.counters["stats"]


def test_heads_are_what_a_task_brings() -> None:
    assert heads(classifier("resnet10t"))[0].out_features == 3  # type: ignore[union-attr]
    assert type(heads(Detector("n"))[0]).__name__ == "Detect"
    assert heads(byt5()) == []


@pytest.mark.gpu
def test_cuda_graphs_replay_the_same_kernels() -> None:
    asked = resolve(Efficiency(cuda_graphs=True), "detect", cuda=True)
    torch.manual_seed(0)
    plain = Detector("n").cuda().eval()
    network = copy.deepcopy(plain)
    apply_levers(network, asked)
    for _ in range(4):  # warm-up, recording, replays
        tiles = torch.rand(4, 3, 128, 128, device="cuda")
        assert torch.equal(network.detect(tiles), plain.detect(tiles))
