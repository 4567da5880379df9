"""Document masks, the bias by offset, and FlexAttention against the dense paths."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_mask
from transformers.models.t5.modeling_t5 import T5Attention

from dubsar.models.attention import (
    FLEX,
    attention_masks,
    document_block_mask,
    document_mask,
    use_offset_bias,
)
from dubsar.models.transliterator import SignAlignedT5, Size, build_transliterator, sentinel, transliterate

SIZE = Size(d_model=32, d_kv=16, d_ff=48, heads=2, encoder_layers=2, decoder_layers=2, dropout=0.0)
# beyond T5's largest distance (128), beyond a block (128), and no multiple of either
SOURCE_LENGTHS, DECODER_LENGTHS, SOURCE_WIDTH, DECODER_WIDTH = ((150, 40), (30, 25)), ((70, 80), (20, 50)), 210, 155


def build(attention: str, *, by_offset: bool = True, dropout: float = 0.0) -> SignAlignedT5:
    """A small network whose relative bias matters."""
    torch.manual_seed(0)
    network = build_transliterator(Size(**{**vars(SIZE), "dropout": dropout}), attention)
    for name, parameter in network.named_parameters():
        if "relative_attention_bias" in name:
            torch.nn.init.normal_(parameter)
    if by_offset:
        use_offset_bias(network)
    return network.eval()


def documents(lengths: tuple[tuple[int, ...], ...], width: int) -> Tensor:
    rows = [[i for i, n in enumerate(row) for _ in range(n)] for row in lengths]
    return torch.tensor([row + [-1] * (width - len(row)) for row in rows])


def packed() -> dict[str, Tensor]:
    """Two rows of two documents, with sentinels in both source and target."""
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(3, 259, (2, SOURCE_WIDTH), generator=generator)
    decoder = torch.randint(3, 259, (2, DECODER_WIDTH), generator=generator)
    source[:, ::10] = sentinel(0) + torch.arange(SOURCE_WIDTH)[::10] // 10
    decoder[:, 3::10] = sentinel(0) + torch.arange(DECODER_WIDTH)[3::10] // 10
    return {
        "input_ids": source,
        "decoder_input_ids": decoder,
        "source_documents": documents(SOURCE_LENGTHS, SOURCE_WIDTH),
        "decoder_documents": documents(DECODER_LENGTHS, DECODER_WIDTH),
    }


def logits_of_documents(network: SignAlignedT5, batch: dict[str, Tensor]) -> Tensor:
    return network(**batch, use_cache=False).logits[batch["decoder_documents"] >= 0]


def visible(mask: Tensor | BlockMask) -> list[list[int]]:
    """The first row's mask as 1 and 0, read from either form."""
    if isinstance(mask, BlockMask):
        return create_mask(mask.mask_mod, mask.shape[0], 1, *mask.shape[2:], device="cpu")[0, 0].int().tolist()
    assert mask.is_floating_point()
    return (mask == 0)[0, 0].int().tolist()


@pytest.mark.parametrize("attention", ["eager", "sdpa", FLEX])
def test_the_worked_example(attention: str) -> None:
    source, decoder = torch.tensor([[0, 0, 1, 1, -1]]), torch.tensor([[0, 1, 1]])
    encoder_mask, decoder_mask, cross_mask = attention_masks(attention, source, decoder, torch.float32)
    first, second = [1, 1, 0, 0, 0], [0, 0, 1, 1, 0]
    assert visible(encoder_mask) == [first, first, second, second, [0, 0, 0, 0, 1]]
    assert visible(decoder_mask) == [[1, 0, 0], [0, 1, 0], [0, 1, 1]]
    assert visible(cross_mask) == [first, second, second]


def test_other_attention_has_no_document_masks() -> None:
    row = torch.zeros(1, 4, dtype=torch.int64)
    with pytest.raises(ValueError, match="flash_attention_2"):
        attention_masks("flash_attention_2", row, row, torch.float32)


def test_padding_that_finds_no_padding_survives_16_bits() -> None:
    queries, keys = torch.tensor([[0, 0, -1]]), torch.tensor([[0, 0, 0, 0]])
    mask = document_mask(queries, keys, causal=False, dtype=torch.float32).bfloat16()
    assert not mask.softmax(-1).isnan().any()
    plain = torch.zeros(1, 3, 4).masked_fill(queries[:, :, None] != keys[:, None, :], torch.finfo(torch.float32).min)
    assert plain.bfloat16().softmax(-1).isnan().any()  # the reason


def test_block_mask_skips_the_blocks_of_other_documents() -> None:
    four = documents(((256, 256, 256, 256),), 1024)
    assert document_block_mask(four, four, causal=False).sparsity() == 75
    assert document_block_mask(four, four, causal=True).sparsity() > 75
    one = torch.zeros_like(four)
    assert document_block_mask(one, one, causal=False).sparsity() == 0


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.float64, 1e-12)])
@torch.no_grad()
def test_flex_computes_what_eager_and_sdpa_compute(dtype: torch.dtype, tolerance: float) -> None:
    batch = packed()
    eager, sdpa, flex = (logits_of_documents(build(a).to(dtype), batch) for a in ("eager", "sdpa", FLEX))
    torch.testing.assert_close(flex, eager, rtol=0, atol=tolerance)
    torch.testing.assert_close(flex, sdpa, rtol=0, atol=tolerance)


@torch.no_grad()
def test_a_document_in_a_row_reads_as_it_does_alone() -> None:
    network, batch = build(FLEX).double(), packed()
    together = network(**batch, use_cache=False).logits
    for row, document in ((0, 0), (0, 1), (1, 0), (1, 1)):
        of_source = batch["source_documents"][row] == document
        of_decoder = batch["decoder_documents"][row] == document
        alone = network(
            input_ids=batch["input_ids"][row, of_source][None],
            decoder_input_ids=batch["decoder_input_ids"][row, of_decoder][None],
            use_cache=False,
        ).logits[0]
        torch.testing.assert_close(together[row, of_decoder], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("broken", ["encoder", "decoder", "cross", "bias"])
@torch.no_grad()
def test_each_part_of_flex_is_needed(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, batch = build(FLEX), packed()
    right = logits_of_documents(network, batch)
    if broken == "bias":
        for stack in (network.encoder, network.decoder):
            stack.block[0].layer[0].SelfAttention.relative_attention_bias.weight.zero_()
    else:
        masks = list(attention_masks(FLEX, batch["source_documents"], batch["decoder_documents"], torch.float32))
        i = ["encoder", "decoder", "cross"].index(broken)
        rows = torch.zeros(2, masks[i].shape[2]), torch.zeros(2, masks[i].shape[3])
        masks[i] = document_block_mask(*rows, causal=broken == "decoder")
        monkeypatch.setattr("dubsar.models.transliterator.attention_masks", lambda *_: masks)
    assert (logits_of_documents(network, batch) - right).abs().max() > 1e-2


@pytest.mark.parametrize("is_decoder", [False, True])
@pytest.mark.parametrize(("queries", "keys", "past"), [(200, 200, 0), (7, 300, 0), (1, 150, 149), (5, 160, 155)])
def test_bias_by_offset_is_the_dense_bias(is_decoder: bool, queries: int, keys: int, past: int) -> None:
    network = build(FLEX).double()
    layer = (network.decoder if is_decoder else network.encoder).block[0].layer[0].SelfAttention
    weight = layer.relative_attention_bias.weight
    dense_1HTL = T5Attention.compute_bias(layer, queries, keys, past_seen_tokens=past)
    table_HO = layer.compute_bias(queries, keys, past_seen_tokens=past)[0, :, 0]
    offsets = torch.arange(keys) - torch.arange(queries)[:, None] + queries - 1
    assert torch.equal(table_HO[:, offsets][None], dense_1HTL)
    upstream = torch.randn_like(dense_1HTL)
    expected, found = (
        torch.autograd.grad((bias * upstream).sum(), weight)[0] for bias in (dense_1HTL, table_HO[:, offsets])
    )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_offset_bias_changes_nothing_elsewhere() -> None:
    plain, by_offset, batch = build("sdpa", by_offset=False), build("sdpa"), packed()
    assert list(plain.state_dict()) == list(by_offset.state_dict())
    assert torch.equal(logits_of_documents(plain, batch), logits_of_documents(by_offset, batch))


@pytest.mark.parametrize("beams", [1, 2])
def test_decoding_without_documents(beams: int) -> None:
    lines = [("𒀭𒌨𒈨𒌈", "akk"), ("𒀭", "hit"), ("𒀭𒈨", "akk")]
    eager, flex = (transliterate(build(attention), lines, beams=beams) for attention in ("eager", FLEX))
    assert [pieces for pieces, _ in flex] == [pieces for pieces, _ in eager]
    assert all(math.isclose(a, b, abs_tol=1e-5) for (_, a), (_, b) in zip(flex, eager, strict=True))


def test_dropout_is_refused() -> None:
    network = build(FLEX, dropout=0.1).train()
    with pytest.raises(ValueError, match=r"no dropout.*0\.1"):
        network(**packed(), use_cache=False)


def test_a_dense_bias_is_refused() -> None:
    with pytest.raises(ValueError, match="use_offset_bias"):
        build(FLEX, by_offset=False)(**packed(), use_cache=False)


@torch.no_grad()
def test_compiled_blocks_neither_break_nor_compile_anew_for_new_documents() -> None:
    network, batch = build(FLEX), packed()
    for block in (*network.encoder.block, *network.decoder.block):
        block.compile(backend="eager", dynamic=False, fullgraph=True)
    logits_of_documents(network, batch)
    batch["source_documents"] = documents(((100, 90), (80, 130)), SOURCE_WIDTH)
    batch["decoder_documents"] = documents(((50, 90), (60, 70)), DECODER_WIDTH)
    with torch._dynamo.config.patch(error_on_recompile=True):
        compiled = logits_of_documents(network, batch)
    torch.testing.assert_close(compiled, logits_of_documents(build("eager"), batch), rtol=0, atol=2e-5)


@pytest.mark.slow
@torch.no_grad()
def test_compiled_for_this_cpu() -> None:
    network, batch = build(FLEX), packed()
    mask, _, _ = attention_masks(FLEX, batch["source_documents"], batch["decoder_documents"], torch.float32)
    layer, states = network.encoder.block[0].layer[0], torch.randn(2, SOURCE_WIDTH, SIZE.d_model)
    expected = layer(states, mask)[0]
    layer.compile(dynamic=False, fullgraph=True)
    torch.testing.assert_close(layer(states, mask)[0], expected, rtol=0, atol=2e-5)


@pytest.mark.gpu
def test_backward_matches_eager() -> None:
    batch = {name: tensor.cuda() for name, tensor in packed().items()}
    of_documents = batch["decoder_documents"] >= 0
    target = batch["decoder_input_ids"].masked_fill(~of_documents, -100)
    gradients = []
    for attention in ("eager", FLEX):
        network = build(attention).cuda().train()
        logits = network(**batch, use_cache=False).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten()).backward()
        gradients.append({name: parameter.grad for name, parameter in network.named_parameters()})
    for name, expected in gradients[0].items():
        error = (gradients[1][name] - expected).norm() / expected.norm()
        assert error < 1e-3, f"{name}: {error:.1e}"
