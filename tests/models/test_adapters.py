"""Adapters learn beside frozen weights, and merge into them exactly; the trap of timm's bypassed qkv among it."""

import copy
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

from dubsar.models.adapters import adapter_parameters, add_adapters, merge_adapters
from dubsar.models.backbones import SignClassifier
from dubsar.models.transliterator import Size, build_transliterator

SMALL_VIT: dict[str, Any] = {"img_size": 32, "embed_dim": 32, "depth": 2, "num_heads": 2}
PIXELS = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def settings(**changed: Any) -> dict[str, Any]:
    return {"variant": "dora", "rank": 4, "alpha": 8, "dropout": 0.0, "targets": ()} | changed


def dinov3() -> SignClassifier:
    """A DINOv3 whose blocks and query biases matter: fresh ones are scaled by 1e-5 and zero."""
    torch.manual_seed(0)
    network = SignClassifier("vit_tiny_patch16_dinov3_qkvb", 3, backbone_args=SMALL_VIT)
    for name, parameter in network.named_parameters():
        if "gamma" in name:
            nn.init.constant_(parameter, 0.5)
        if name.endswith(("q_bias", "v_bias", "head.weight")):
            nn.init.normal_(parameter, std=0.3)
    return network


def byt5() -> Any:
    torch.manual_seed(0)
    return build_transliterator(Size(32, 16, 64, 2, 2, 2, 0.0))


def resnet() -> SignClassifier:
    """A ResNet whose blocks matter: timm starts their last norm with zeros, so that no gradient reaches a kernel."""
    torch.manual_seed(0)
    return SignClassifier("resnet10t", 3, backbone_args={"channels": [8, 8, 16, 16], "zero_init_last": False})


def convnext() -> SignClassifier:
    """A ConvNeXt whose blocks matter."""
    torch.manual_seed(0)
    sizes = {"depths": [1, 1, 1, 1], "dims": [8, 8, 16, 16], "patch_size": 2, "ls_init_value": 1.0}
    return SignClassifier("convnext_atto", 3, backbone_args=sizes)


def mobilenet() -> SignClassifier:
    torch.manual_seed(0)
    return SignClassifier("mobilenetv4_conv_small_035", 3)


def blocks(network: Any) -> list[nn.Module]:
    if hasattr(network, "encoder"):
        return [*network.encoder.block, *network.decoder.block]
    net = network.net
    if hasattr(net, "stages"):
        return [*net.stages]
    return [*net.blocks] if hasattr(net, "blocks") else [*net.layer1, *net.layer2, *net.layer3, *net.layer4]


def outputs(network: Any) -> torch.Tensor:
    if hasattr(network, "encoder"):
        source, decoder = torch.tensor([[100, 262, 70, 71, 263, 80, 1]]), torch.tensor([[0, 262, 71, 263]])
        logits: torch.Tensor = network(input_ids=source, decoder_input_ids=decoder).logits
        return logits
    pixels = PIXELS.to(next(network.parameters()).dtype)
    return network(pixels)  # type: ignore[no-any-return]


def train(network: Any, steps: int = 3) -> None:
    optimizer = torch.optim.Adam([p for p in network.parameters() if p.requires_grad], lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        outputs(network).square().mean().backward()
        optimizer.step()


NETWORKS = {"dinov3": dinov3, "resnet": resnet, "convnext": convnext, "mobilenet": mobilenet, "byt5": byt5}


@pytest.mark.parametrize("variant", ["dora", "lora"])
@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_adapters_change_nothing_at_first_learn_everywhere_and_merge_exactly(make: Any, variant: str) -> None:
    plain = make().double().eval()
    before = outputs(plain).detach()
    network = copy.deepcopy(plain)
    add_adapters(network, blocks(network), settings(variant=variant))
    assert torch.allclose(outputs(network), before, rtol=1e-10, atol=1e-12)
    train(network)
    adapters = dict(adapter_parameters(network))
    assert len(adapters) >= (3 if variant == "dora" else 2) * len(blocks(network))
    assert all(p.grad is not None and bool(p.grad.any()) for p in adapters.values())
    after = outputs(network).detach()
    assert (after - before).norm() > 1e-3 * before.norm()  # what follows would be empty if nothing had been learned
    merge_adapters(network)
    assert torch.allclose(outputs(network), after, rtol=1e-10, atol=1e-12)
    assert list(network.state_dict()) == list(plain.state_dict())
    plain.load_state_dict(network.state_dict())
    # a plain network multiplies with qkv and its bias in one call
    assert torch.allclose(outputs(plain), after, rtol=1e-10, atol=1e-12)


def test_without_the_switch_timm_passes_adapters_on_qkv_by() -> None:
    """Negative control: the trap that `add_adapters` disarms is real, and a small layer scale would hide it."""
    network = dinov3().double().eval()
    add_adapters(network, blocks(network), settings(variant="lora", targets=("qkv",)))
    for block in network.net.blocks:
        block.attn.qkv_bias_separate = False
    assert not outputs(network).requires_grad
    for name, parameter in adapter_parameters(network):
        if "lora_B" in name:
            nn.init.normal_(parameter)
    before = outputs(network).detach()
    merge_adapters(network)
    assert (outputs(network) - before).norm() > 0.1 * before.norm()


def test_the_head_learns_and_the_backbone_is_frozen() -> None:
    network = resnet()
    add_adapters(network, blocks(network), settings(), heads=[network.net.fc])
    learned = {name for name, p in network.named_parameters() if p.requires_grad}
    assert learned == {name for name, _ in adapter_parameters(network)} | {"net.fc.weight", "net.fc.bias"}
    frozen = copy.deepcopy({n: p for n, p in network.named_parameters() if not p.requires_grad})
    train(network)
    assert all(torch.equal(p, frozen[n]) for n, p in network.named_parameters() if n in frozen)


def test_a_merge_is_in_float32_since_bfloat16_is_off() -> None:
    low = resnet()
    add_adapters(low, blocks(low), settings(variant="lora"))
    train(low, 20)
    low.bfloat16()
    exact, ours, naive = copy.deepcopy(low).double(), copy.deepcopy(low), copy.deepcopy(low)
    merge_adapters(exact)
    merge_adapters(ours)
    for module in list(naive.modules()):
        if hasattr(module, "get_base_layer"):
            module.merge()
    wanted = exact.net.layer2[0].conv1.weight
    off = [
        float((weight.double() - wanted).norm() / wanted.norm())
        for weight in (ours.net.layer2[0].conv1.weight, naive.net.layer2[0].conv1.base_layer.weight)
    ]
    assert off[0] < 1e-6
    assert off[1] > 1e-3


def test_targets_are_named_and_those_that_are_not_there_refused() -> None:
    network = dinov3()
    with pytest.raises(
        ValueError, match=r"efficiency\.dora\.targets: this network has no wi_0; it has fc1, fc2, proj, qkv"
    ):
        add_adapters(network, blocks(network), settings(targets=("qkv", "wi_0")))
    with pytest.raises(ValueError, match=r"efficiency\.dora: this network has no repeated blocks"):
        add_adapters(network, [], settings())
    add_adapters(network, blocks(network), settings(targets=("qkv",)))
    assert {name.split(".lora_")[0].rpartition(".")[2] for name, _ in adapter_parameters(network)} == {"qkv"}


def test_without_adapters_a_merge_changes_nothing() -> None:
    network = resnet()
    before = copy.deepcopy(network.state_dict())
    merge_adapters(network)
    assert all(torch.equal(t, before[k]) for k, t in network.state_dict().items())


def test_peft_is_loaded_only_where_it_is_used() -> None:
    code = "import sys, dubsar.models.adapters; print('peft' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
