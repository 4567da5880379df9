"""Weights to start self-supervision from: in timm's key layout, in Meta's, or of a former run.

A file whose shapes fit may still be another network's: what the backbone has no place for, biases of keys, periods of
rotary positions and the normalisation of pixels are looked at as well, since a backbone that is off in one of them
trains without complaint, from a worse start.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from timm.models import convnext, eva
from torch import Tensor

from dubsar.models.backbones import check_card, read_weights
from dubsar.models.checkpoint import FORMAT
from dubsar.models.ssl.encoder import SslEncoder

State = dict[str, Tensor]
Layout = Literal["timm", "meta", "dubsar"]

_FIRST = {"ViT": ("patch_embed.proj.weight",), "ConvNeXt": ("stem.0.weight", "downsample_layers.0.0.weight")}
_META = {"storage_tokens", "blocks.0.ls1.gamma", "rope_embed.periods", "downsample_layers.0.0.weight"}
_REGISTERS = ("reg_token", "storage_tokens")
_BIASES = ("attn.q_bias", "attn.v_bias")
_BLOCK = re.compile(r"blocks\.\d+|stages\.\d+(\.blocks)?\.\d+")
# keys of a backbone's own tensors; all others, such as heads and norms for training alone, can be left out
_BACKBONE = re.compile(
    r"(blocks|stages|stem|downsample_layers|patch_embed|pos_embed|cls_token|reg_token|storage_tokens|norm_pre|norm"
    r"|cls_norm|rope\.freqs)\b"
)
_RENAMED = (  # from timm's keys to Meta's
    (r"^reg_token$", "storage_tokens"),
    (r"\.gamma_([12])$", r".ls\1.gamma"),
    (r"\.fc1_g\.", ".w1."),
    (r"\.fc1_x\.", ".w2."),
    (r"^stem\.", "downsample_layers.0."),
    (r"^stages\.(\d+)\.downsample\.", r"downsample_layers.\1."),
    (r"^stages\.(\d+)\.blocks\.", r"stages.\1."),
    (r"\.conv_dw\.", ".dwconv."),
    (r"^(stages\..*)\.mlp\.fc([12])\.", r"\1.pwconv\2."),
    (r"^head\.norm\.", "norm."),
)
_SETTINGS = "give the file's own network as model.backbone and model.backbone_args"
_BF16 = 2.0**-8  # twice the relative error of bfloat16, to which Meta's files round their periods


@dataclass(frozen=True)
class Loaded:
    """What a file was.

    Attributes:
        layout: of its keys; ``dubsar`` is timm's, written by dubsar.
        ignored: keys that are no part of the backbone, such as heads.
    """

    layout: Layout
    ignored: list[str]


def load_backbone(encoder: SslEncoder, path: Path) -> Loaded:
    """Load a backbone's weights: every tensor of it has to be in the file, in its shape; a mask token may be.

    Args:
        encoder: changed in place, in full or not at all.
        path: local .safetensors in timm's or Meta's key layout, or the folder of a former run.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not safetensors, or not of this backbone: what differs, and what to change.
    """
    path = path / "pretrain.safetensors" if path.is_dir() else path
    everything = read_weights(path)
    try:
        prefix, found = _only_network(everything)
        layout: Layout = "meta" if _META & set(found) else "dubsar" if _is_ours(path) else "timm"
        own: State = encoder.net.state_dict()
        needed = _renamed(own) if layout == "meta" else own
        token = found.pop("mask_token", None)
        if layout == "meta":
            found = _split_biases(found)
        elif layout == "dubsar":
            check_card(path.with_suffix(".json"), encoder.normalise)
        _check(needed, found)
        _check_periods(encoder.net, found)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    taken = {key: found[key] for key in needed}
    encoder.net.load_state_dict(_from_meta(taken, encoder.net) if layout == "meta" else taken)
    used = {f"{prefix}{key}" for key in (needed if layout != "meta" else to_meta(own))}
    if token is not None and token.numel() == encoder.mask_token.numel():
        used.add(f"{prefix}mask_token")
        with torch.no_grad():
            encoder.mask_token.copy_(token.flatten())
    return Loaded(layout, sorted(set(everything) - used))


def to_meta(state: State) -> State:
    """Return a backbone's tensors under the keys of Meta's DINOv3; what is not among timm's is left out.

    Meta's own loader asks for ``mask_token`` and ``rope_embed.periods`` too.

    Args:
        state: in timm's key layout, of a ViT or ConvNeXt.
    """
    out = _renamed(state)
    for key in [key for key in out if key.endswith(_BIASES[0])]:
        query, value = out.pop(key), out.pop(key.replace(*_BIASES))
        name = key.replace(_BIASES[0], "attn.qkv.bias")
        out[name] = torch.cat((query, torch.zeros_like(query), value))
        out[f"{name}_mask"] = torch.cat((torch.ones_like(query), torch.zeros_like(query), torch.ones_like(value)))
    return out


def _renamed(state: State) -> State:
    out = {}
    for key, tensor in state.items():
        # a gated MLP has three layers, the last of which is timm's fc2 too
        gated = key.replace(".mlp.fc2.", ".mlp.fc1_g.") in state
        name = key.replace(".mlp.fc2.", ".mlp.w3.") if gated else key
        for pattern, replacement in _RENAMED:
            name = re.sub(pattern, replacement, name)
        out[name] = tensor.flatten(1) if ".pwconv" in name and tensor.ndim > 1 else tensor
    return out


def _only_network(everything: State) -> tuple[str, State]:
    """Return the one backbone of a file, and what stands before its keys."""
    firsts = [first for names in _FIRST.values() for first in names]
    prefixes = {
        key.removesuffix(first) for key in everything for first in firsts if key == first or key.endswith(f".{first}")
    }
    if not prefixes:
        raise ValueError(
            f"no backbone in timm's or Meta's key layout, expected a key {' or '.join(firsts)}; found for example "
            f"{sorted(everything)[:3]}; those of transformers are not read: take timm's file of that model"
        )
    if len(prefixes) > 1:
        raise ValueError(f"{len(prefixes)} networks ({', '.join(sorted(prefixes))}); give a file that holds one")
    prefix = prefixes.pop()
    return prefix, {key.removeprefix(prefix): t for key, t in everything.items() if key.startswith(prefix)}


def _is_ours(path: Path) -> bool:
    with safe_open(path, framework="pt") as file:
        return bool((file.metadata() or {}).get("format") == FORMAT)


def _check_periods(net: Any, found: State) -> None:
    """Refuse rotary positions of other frequencies; the file's are rounded and not taken."""
    periods = found.get("rope_embed.periods")
    if periods is None:
        return
    own = getattr(getattr(net, "rope", None), "periods", torch.empty(0)).cpu()
    if own.shape != periods.shape or not torch.allclose(periods.float(), own.float(), rtol=_BF16, atol=0):
        raise ValueError(
            f"periods of rotary positions are {_span(periods)}, the network's {_span(own)}; give the same "
            "rope_temperature and width per head in model.backbone_args"
        )


def _span(periods: Tensor) -> str:
    return f"{len(periods)} from {periods[0]:.3g} to {periods[-1]:.3g}" if len(periods) else "none"


def _split_biases(found: State) -> State:
    """Take the biases of queries and values out of those of all three; timm's networks have none of keys."""
    out = {key: t for key, t in found.items() if not key.endswith((".qkv.bias", ".qkv.bias_mask"))}
    for key in found:
        if not key.endswith("attn.qkv.bias"):
            continue
        mask = found.get(f"{key}_mask")
        bias = found[key] if mask is None else torch.where(mask == 0, 0, found[key])
        query, of_keys, value = bias.chunk(3)
        if of_keys.any():
            raise ValueError(f"{key}: keys have biases, which timm's networks have no place for; this cannot be loaded")
        out |= {key.replace("attn.qkv.bias", name): part for name, part in zip(_BIASES, (query, value), strict=True)}
    return out


def _from_meta(taken: State, net: Any) -> State:
    """Convert Meta's keys to timm's by timm's own functions."""
    if "downsample_layers.0.0.weight" in taken:
        converted: State = convnext.checkpoint_filter_fn(taken, net)
        return converted
    # it is by this key that the function knows DINOv3
    registers = {"storage_tokens": taken.get("storage_tokens", taken["cls_token"][:, :0])}
    state: State = eva.checkpoint_filter_fn(taken | registers, net)
    return {key: t for key, t in state.items() if key != "reg_token" or t.shape[1]}


def _check(needed: State, found: State) -> None:
    """Refuse a file that is not of this backbone, with the difference that explains the others."""
    for kind, names in _FIRST.items():
        for first in names:
            if first in needed and first not in found:
                raise ValueError(f"not of a {kind}, as the backbone is; set model.backbone to the file's")
            if first in needed:
                _check_sizes(needed, found, first)
    surplus = [key for key in found if key not in needed and _BACKBONE.match(key)]
    biases = [key for key in surplus if key.endswith(_BIASES)]
    if [key for key in biases if found[key].any()] or any(k.endswith(_BIASES) for k in set(needed) - set(found)):
        has, lacks = ("the file has", "the network has none") if biases else ("the network has", "the file has none")
        raise ValueError(
            f"qkv bias: {has} biases of queries and values, {lacks}; give model.backbone_args qkv_bias: "
            f"{str(bool(biases)).lower()}, or the model name {'with' if biases else 'without'} _qkvb"
        )
    if surplus := [key for key in surplus if key not in biases]:
        raise ValueError(
            f"{len(surplus)} tensors that the network has no place for, such as {surplus[:3]}; {_SETTINGS}"
        )
    if missing := [key for key in needed if key not in found]:
        raise ValueError(f"{len(missing)} of {len(needed)} tensors are missing, such as {missing[:3]}; {_SETTINGS}")
    for key, tensor in needed.items():
        if found[key].shape != tensor.shape:
            raise ValueError(f"{key} is {tuple(found[key].shape)}, expected {tuple(tensor.shape)}; {_SETTINGS}")


def _check_sizes(needed: State, found: State, first: str) -> None:
    """Refuse another width, patch size, number of registers or of blocks; ``first`` is the first layer's key."""
    (own_width, *_, own_patch), (width, *_, patch) = needed[first].shape, found[first].shape
    own_registers, registers = (
        next((state[key].shape[1] for key in _REGISTERS if key in state), 0) for state in (needed, found)
    )
    own_blocks, blocks = ({m.group() for key in state if (m := _BLOCK.match(key))} for state in (needed, found))
    for what, theirs, own, setting in (
        ("width", width, own_width, "embed_dim, of a ConvNeXt dims"),
        ("patch size", patch, own_patch, "patch_size"),
        ("registers", registers, own_registers, "num_reg_tokens"),
        ("blocks", len(blocks), len(own_blocks), "depth, of a ConvNeXt depths"),
    ):
        if theirs != own:
            raise ValueError(
                f"{what}: {theirs} in the file, {own} in the network; set model.backbone, or model.backbone_args "
                f"({setting}), to the file's"
            )
