"""The transliterator: encodings, forced order of sentinels, decoding alone and in batches, loading."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import T5Config, T5ForConditionalGeneration

from dubsar.models.transliterator import (
    BOUNDARY,
    BYTE_OFFSET,
    END,
    FIRST_SENTINEL,
    IGNORED,
    MAX_PIECE_BYTES,
    PAD,
    SENTINELS,
    VOCABULARY,
    SentinelOrder,
    SignAlignedT5,
    Size,
    boundary_targets,
    build_transliterator,
    clean,
    decode_pieces,
    encode_pieces,
    encode_signs,
    load_pretrained,
    pad,
    sentinel,
    transliterate,
)

SIZE = Size(d_model=32, d_kv=8, d_ff=48, heads=2, encoder_layers=1, decoder_layers=1, dropout=0.0)
LINES = [("𒀭𒌨𒈨𒌈", "akk"), ("𒀭", "hit"), ("", "hit"), ("𒀭…𒈨", "akk"), ("𒌨" * 9, "xhu")]


@pytest.fixture(scope="module")
def model() -> SignAlignedT5:
    torch.manual_seed(0)
    return build_transliterator(SIZE).eval()


def test_compact_leaves_out_what_all_signs_share() -> None:
    assert encode_signs("𒀭", "akk", start=3) == [*(b + 3 for b in b"akk"), 262, 0x80 + 3, 0xAD + 3, END]
    assert encode_signs("𒀭", "akk", start=3, compact=False)[4:] == [b + 3 for b in "𒀭".encode()] + [END]
    # what is no cuneiform sign is written in full, and no two signs look alike
    assert encode_signs("…x", "hit")[4:-1] == [b + 3 for b in "…".encode()] + [260, ord("x") + 3]
    signs = [chr(c) for c in range(0x12000, 0x12550)]
    assert len({tuple(encode_signs(s, "akk")) for s in signs}) == len(signs)


def test_sentinels_count_modulo_their_number() -> None:
    assert [sentinel(n) for n in (0, 124, 125, 251)] == [259, 383, 259, 260]
    ids = encode_signs("𒀭" * 130, "akk", start=120)
    assert [i for i in ids if i >= FIRST_SENTINEL] == [259 + (120 + n) % SENTINELS for n in range(130)]
    assert max(ids) < VOCABULARY


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), max_size=140), st.integers(0, 300))
@settings(max_examples=60, deadline=None)
def test_pieces_come_back(pieces: list[str], start: int) -> None:
    assert decode_pieces(encode_pieces(pieces, start=start)) == pieces


def test_ids_that_are_no_bytes_are_masked() -> None:
    good = encode_pieces(["ta", "-na"])
    noisy = [PAD, IGNORED, *good[:2], -100, 384, 10**6, 2, *good[2:], 70, 71, IGNORED]
    assert decode_pieces(noisy) == ["ta", "-na"]
    assert decode_pieces([]) == []
    assert decode_pieces([70, 71, END]) == []  # bytes before the first sentinel belong to no sign
    assert decode_pieces([FIRST_SENTINEL, 0xC3 + 3]) == ["\ufffd"]  # half a character


def test_order_allows_the_next_sentinel_only_and_the_end_after_the_last() -> None:
    order = SentinelOrder([2, 1], beams=1)

    def allowed(*rows: list[int]) -> list[set[str]]:
        scores = order(torch.tensor(rows), torch.zeros(len(rows), VOCABULARY))
        names = {**{i: f"s{i - 259}" for i in range(259, 384)}, END: "end"}
        sets = []
        for row in scores:
            free = torch.isfinite(row).nonzero().flatten().tolist()
            sets.append({names.get(i, "byte") for i in free if i in names or i >= BYTE_OFFSET})
            assert len([i for i in free if 3 <= i < 259]) in (0, 256)
            assert not {PAD, 2} & set(free)
        return sets

    assert allowed([PAD], [PAD]) == [{"s0"}, {"s0"}]
    assert allowed([PAD, 259, 70], [PAD, 259, 70]) == [{"byte", "s1"}, {"byte", "end"}]
    assert allowed([PAD, 259, 260], [PAD, 259, END]) == [{"byte", "end"}, {"byte", "end"}]
    full = [PAD, 259, *[70] * MAX_PIECE_BYTES]
    assert allowed(full, full) == [{"s1"}, {"end"}]


def test_the_boundary_scores_the_next_sentinel_or_the_end() -> None:
    pieces = encode_pieces(["ta", ""], start=7)
    assert boundary_targets(pieces) == [BOUNDARY, ord("t") + 3, ord("a") + 3, BOUNDARY, BOUNDARY]
    scores = torch.zeros(2, VOCABULARY)
    scores[:, BOUNDARY] = 5.0
    ordered = SentinelOrder([2, 1], beams=1)(torch.tensor([[PAD, 259, 70], [PAD, 259, 70]]), scores)
    assert (int(ordered[0].argmax()), int(ordered[1].argmax())) == (260, END)
    assert float(ordered.max()) == 5.0


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("count", [1, 7, 128])
def test_a_random_model_gives_one_piece_per_sign_and_stops(model: SignAlignedT5, beams: int, count: int) -> None:
    if count == 128 and beams > 1:
        count = 30
    lines = [("𒀭" * count, "akk"), ("𒌨" * max(1, count // 2), "hit")]
    for (signs, _), (pieces, score) in zip(lines, transliterate(model, lines, beams=beams), strict=True):
        assert len(pieces) == len(signs)
        assert all(len(p.encode()) <= 3 * MAX_PIECE_BYTES for p in pieces)  # a stray byte becomes U+FFFD, three bytes
        assert math.isfinite(score)
        assert score <= 0


@pytest.mark.parametrize("beams", [1, 3])
def test_batched_decoding_equals_decoding_alone(model: SignAlignedT5, beams: int) -> None:
    together = transliterate(model, LINES, beams=beams)
    for line, (pieces, score) in zip(LINES, together, strict=True):
        ((alone, alone_score),) = transliterate(model, [line], beams=beams)
        assert pieces == alone
        assert score == pytest.approx(alone_score, abs=1e-4)
    assert transliterate(model, LINES, beams=beams, batch_size=2)[4][0] == together[4][0]
    assert together[2] == ([], 0.0)
    assert transliterate(model, []) == []


def test_the_score_is_the_mean_log_probability_of_what_was_written(model: SignAlignedT5) -> None:
    signs, language = LINES[0]
    ((_, score),) = transliterate(model, [(signs, language)])
    source, target = torch.tensor([encode_signs(signs, language)]), [PAD]
    order, rows = SentinelOrder([len(signs)], 1), []
    while target[-1] != END:  # greedy decoding without a cache
        logits = model(input_ids=source, decoder_input_ids=torch.tensor([target])).logits[:, -1]
        best = order(torch.tensor([target]), logits).log_softmax(-1)[0].max(0)
        rows.append(float(best.values))
        target.append(int(best.indices))
    assert len(rows) > 2 * len(signs)
    assert score == pytest.approx(sum(rows) / len(rows), abs=1e-4)


def test_the_decoder_sees_the_sign_that_it_reads(model: SignAlignedT5) -> None:
    source = torch.tensor([encode_signs("𒀭𒌨𒈨", "akk")])
    other = torch.tensor([encode_signs("𒀭𒌨𒌈", "akk")])
    decoder = torch.tensor([[PAD, 259, 70, 260, 71, 261]])
    one, two = (model(input_ids=s, decoder_input_ids=decoder).logits[0] for s in (source, other))
    change = (one - two).abs().max(-1).values
    assert float(change[5]) > 2 * float(change[3])  # the third sentinel stands for the sign that differs
    unaligned = T5ForConditionalGeneration(model.config).eval()
    unaligned.load_state_dict(model.state_dict())
    plain = unaligned(input_ids=source, decoder_input_ids=decoder[:, :1]).logits
    assert torch.allclose(plain, model(input_ids=source, decoder_input_ids=decoder[:, :1]).logits, atol=1e-6)


def test_padding_changes_nothing(model: SignAlignedT5) -> None:
    source = encode_signs("𒀭𒌨", "akk")
    decoder = torch.tensor([[PAD, 259, 70]])
    alone = model(
        input_ids=torch.tensor([source]), attention_mask=torch.ones(1, len(source)), decoder_input_ids=decoder
    ).logits
    padded = torch.tensor([[*source, *[PAD] * 9]])
    mask = (torch.arange(padded.shape[1]) < len(source)).long()[None]
    assert torch.allclose(
        alone, model(input_ids=padded, attention_mask=mask, decoder_input_ids=decoder).logits, atol=1e-5
    )


def test_the_first_loss_is_near_that_of_guessing() -> None:
    torch.manual_seed(0)
    fresh = build_transliterator(Size(64, 16, 96, 4, 2, 1, 0.0))
    target = torch.tensor([encode_pieces(["ta", "-na", " a", "-na"])])
    decoder = torch.cat((torch.zeros(1, 1, dtype=torch.long), target[:, :-1]), 1)
    logits = fresh(input_ids=torch.tensor([encode_signs("𒀭𒌨𒈨𒌈", "akk")]), decoder_input_ids=decoder).logits
    loss = torch.nn.functional.cross_entropy(logits[0], target[0])
    assert abs(float(loss) - math.log(VOCABULARY)) < 1.5


@pytest.mark.parametrize("tied", [True, False])
def test_a_byt5_in_hugging_faces_layout_loads_from_a_folder(tmp_path: Path, tied: bool) -> None:
    config = T5Config(vocab_size=384, d_model=16, d_kv=8, d_ff=24, num_heads=2, num_layers=1, tie_word_embeddings=tied)
    theirs = T5ForConditionalGeneration(config)
    theirs.save_pretrained(tmp_path)
    ours = load_pretrained(str(tmp_path), attention="sdpa")
    assert isinstance(ours, SignAlignedT5)
    assert ours.config._attn_implementation == "sdpa"
    state = ours.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in theirs.state_dict().items())
    assert len(transliterate(ours.eval(), [("𒀭𒌨", "akk")])[0][0]) == 2


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    T5ForConditionalGeneration(
        T5Config(vocab_size=300, d_model=16, d_kv=8, d_ff=24, num_heads=2, num_layers=1)
    ).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="a vocabulary of 300, expected ByT5's 384"):
        load_pretrained(str(tmp_path))


def test_what_is_not_there_is_said_offline(tmp_path: Path) -> None:
    for name in ("google/byt5-small", str(tmp_path)):
        with pytest.raises(
            FileNotFoundError, match=r"not a local folder with a ByT5.*give its folder as model\.pretrained"
        ):
            load_pretrained(name)


def test_pad_and_clean() -> None:
    assert pad([[1], [1, 2, 3]], 9).tolist() == [[1, 9, 9], [1, 2, 3]]
    assert pad([[1], [2]], 9).dtype == torch.int64
    assert clean([" ta", "-na ", "", "  {d}", "EN"]) == "ta-na {d}EN"
    assert clean([]) == ""
