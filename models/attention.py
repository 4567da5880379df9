"""Attention among documents that share a row: dense masks, block masks, and FlexAttention with T5's relative bias.

A packed row holds several lines one after the other, and nothing may look from one into another: not in the encoder
(ee), not in the decoder (dd), and not from the decoder into the encoder (de). Two numbers of a document say who belongs
together; -1 is padding. One row with two documents, `1` where a mask lets a query (down) see a key (across)::

    source_documents_BL   0 0 1 1 -1        decoder_documents_BT   0 1 1

    ee      0  0  1  1 -1        dd      0  1  1        de      0  0  1  1 -1
       0    1  1  .  .  .           0    1  .  .           0    1  1  .  .  .
       0    1  1  .  .  .           1    .  1  .           1    .  .  1  1  .
       1    .  .  1  1  .           1    .  1  1           1    .  .  1  1  .
       1    .  .  1  1  .
      -1    .  .  .  .  1

No position ids are needed: T5's bias depends on key - query alone, and a document's ids stay neighbours in its row. So
the bias of all pairs is a table of T + L - 1 numbers a head (`OffsetBiasAttention`), which the kernel looks up, instead
of T x L; and of the mask it visits only the blocks of 128 x 128 that hold a 1.

Where FlexAttention runs: forward and backward on CUDA, always compiled; on a CPU only the forward, which skips blocks
only inside a compiled network and otherwise computes everything, as a reference. It knows no dropout. Without a block
mask (decoding, rows of one document) a network set to `FLEX` computes `scaled_dot_product_attention`.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.models.t5.modeling_t5 import T5Attention

FLEX = "dubsar_flex"  # not Transformers' own "flex_attention": that reads T5's bias out of bounds beyond one row

_fused_attention = torch.compile(flex_attention, fullgraph=True)  # fullgraph: an error, never a silent dense fallback


def document_mask(queries_BT: Tensor, keys_BL: Tensor, *, causal: bool, dtype: torch.dtype) -> Tensor:
    """Return the additive mask (B, 1, T, L): 0 where a query may see a key, the dtype's minimum elsewhere.

    Padding sees padding, and everything where there is none: a row all masked is NaN once 16 bits turn the minimum to
    -inf. Never boolean: eager attention would add a boolean mask as 0 and 1.

    Args:
        queries_BT: the document of each query; -1 is padding.
        keys_BL: the document of each key; -1 is padding.
        causal: whether a query sees only keys at its own position and before.
        dtype: of the scores to which the mask is added.
    """
    seen_BTL = queries_BT[:, :, None] == keys_BL[:, None, :]
    if causal:
        seen_BTL = seen_BTL.tril()
    seen_BTL = seen_BTL | ((queries_BT < 0)[:, :, None] & ~seen_BTL.any(-1, keepdim=True))
    mask_BTL = torch.zeros(seen_BTL.shape, dtype=dtype, device=seen_BTL.device)
    return mask_BTL.masked_fill(~seen_BTL, torch.finfo(dtype).min)[:, None]


def document_block_mask(queries_BT: Tensor, keys_BL: Tensor, *, causal: bool) -> BlockMask:
    """Return `document_mask` as FlexAttention takes it; padding sees padding, or nothing (its states are then 0)."""

    def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        same = queries_BT[row, query] == keys_BL[row, key]
        return same & (key <= query) if causal else same

    rows, queries = queries_BT.shape
    return create_block_mask(sees, rows, None, queries, keys_BL.shape[1], device=queries_BT.device, _compile=False)


def attention_masks(
    attention: str, source_documents_BL: Tensor, decoder_documents_BT: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor] | tuple[BlockMask, BlockMask, BlockMask]:
    """Return the masks of encoder, decoder and cross-attention for packed rows, in the form that ``attention`` takes.

    Args:
        attention: what the network computes: "eager", "sdpa" or `FLEX`.
        source_documents_BL: the document of each source id; -1 is padding.
        decoder_documents_BT: the document of each decoder id; -1 is padding.
        dtype: of additive masks; block masks have none.

    Raises:
        ValueError: ``attention`` has no form for documents here.
    """
    source, decoder = source_documents_BL, decoder_documents_BT
    if attention == FLEX:
        return (
            document_block_mask(source, source, causal=False),
            document_block_mask(decoder, decoder, causal=True),
            document_block_mask(decoder, source, causal=False),
        )
    if attention not in {"eager", "sdpa"}:
        raise ValueError(f"attention {attention!r} takes no document masks; packed rows need eager, sdpa or {FLEX}")
    return (
        document_mask(source, source, causal=False, dtype=dtype),
        document_mask(decoder, decoder, causal=True, dtype=dtype),
        document_mask(decoder, source, causal=False, dtype=dtype),
    )


class OffsetBiasAttention(T5Attention):  # type: ignore[misc]
    """A `T5Attention` that, when set to `FLEX`, computes its bias once per offset instead of once per pair."""

    def compute_bias(
        self,
        query_length: int,
        key_length: int,
        device: torch.device | None = None,
        past_seen_tokens: int = 0,
    ) -> Tensor:
        """Return (1, H, 1, T + L - 1): the bias at key - query from 1 - T to L - 1, the cache's ids counted in."""
        if self.config._attn_implementation != FLEX:
            dense_1HTL: Tensor = super().compute_bias(query_length, key_length, device, past_seen_tokens)
            return dense_1HTL
        offsets = torch.arange(1 - query_length, key_length, device=device) - past_seen_tokens
        buckets = self._relative_position_bucket(
            offsets,
            bidirectional=not self.is_decoder,
            num_buckets=self.relative_attention_num_buckets,
            max_distance=self.relative_attention_max_distance,
        )
        bias_OH: Tensor = self.relative_attention_bias(buckets)
        return bias_OH.T[None, :, None]


def use_offset_bias(model: nn.Module) -> None:
    """Make every layer of a T5 that owns a relative bias an `OffsetBiasAttention`; parameters and names stay."""
    for module in model.modules():
        if isinstance(module, T5Attention) and module.has_relative_attention_bias:
            module.__class__ = OffsetBiasAttention


def attend(
    module: nn.Module,
    query_BHTE: Tensor,
    key_BHLE: Tensor,
    value_BHLE: Tensor,
    mask: Tensor | BlockMask | None,
    *,
    position_bias: Tensor,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute a T5 layer's attention (B, T, H, E) in the way that Transformers' attention interface asks for.

    Raises:
        ValueError: FlexAttention with dropout, or a self-attention whose bias is not by offset (`use_offset_bias`).
    """
    queries, keys = query_BHTE.shape[2], key_BHLE.shape[2]
    is_cross = module.is_decoder and not module.is_causal  # its bias is nought, yet arrives as zeros (1, H, T, L)
    if not is_cross and position_bias.shape[2:] != (1, queries + keys - 1):
        raise ValueError(f"attention {FLEX} needs T5's bias by offset: call use_offset_bias on the network first")
    if isinstance(mask, BlockMask):
        if dropout:
            raise ValueError(f"FlexAttention knows no dropout, the network asks for {dropout}: set it to 0")
        bias_HO = None if is_cross else position_bias[0, :, 0]
        states_BHTE = _attend_in_blocks(query_BHTE, key_BHLE, value_BHLE, bias_HO, mask, kwargs["scaling"])
        return states_BHTE.transpose(1, 2).contiguous(), None
    if not is_cross:
        offset_TL = torch.arange(keys) - torch.arange(queries)[:, None] + queries - 1
        position_bias = position_bias[:, :, 0, offset_TL.to(position_bias.device)]
    bias_and_dropout = {"position_bias": position_bias, "dropout": dropout}
    states_BTHE, _ = sdpa_attention_forward(
        module, query_BHTE, key_BHLE, value_BHLE, mask, **bias_and_dropout, **kwargs
    )
    return states_BTHE, None


def _attend_in_blocks(
    query_BHTE: Tensor, key_BHLE: Tensor, value_BHLE: Tensor, bias_HO: Tensor | None, mask: BlockMask, scale: float
) -> Tensor:
    last = query_BHTE.shape[2] - 1

    def add_bias(score: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return score if bias_HO is None else score + bias_HO[head, key - query + last]

    kernel = _fused_attention if query_BHTE.is_cuda and not torch.compiler.is_compiling() else flex_attention
    if not query_BHTE.is_cuda:  # compiled for a CPU, the kernel reads the shape of what is viewed, not of the view
        query_BHTE, key_BHLE, value_BHLE = (x.contiguous() for x in (query_BHTE, key_BHLE, value_BHLE))
    states_BHTE: Tensor = kernel(query_BHTE, key_BHLE, value_BHLE, score_mod=add_bias, block_mask=mask, scale=scale)
    return states_BHTE


AttentionInterface.register(FLEX, attend)
AttentionMaskInterface.register(FLEX, sdpa_mask)
