"""ByT5 for sign sequences: byte vocabulary, explicit alignment by sentinels, greedy and beam decoding.

A T5 has no absolute positions and no relative bias in cross-attention, so a small one trained from scratch learns the
language long before it learns which sign is being read (still 1.8 nats an id after 360 steps, sentinels and all). So
the alignment is given: source and target carry the same sentinel (ByT5's 125 spare ids, as in span corruption) for the
same sign, and where the decoder reads a sentinel it also gets the encoder's state at that sentinel (`SignAlignedT5`)::

    signs     𒀭           𒌨           𒈨                source   <s0> 𒀭 <s1> 𒌨 <s2> 𒈨 </s>
    pieces    "{d}"       "taš"       "-me"             target   <s0>{d}<s1>taš<s2>-me</s>

Which sentinel follows is no question, only whether the piece ends: in training every sentinel and the end count as one
target, `BOUNDARY` (else the loss is mostly that of counting to 125). Decoding allows only the next sentinel in turn and
the end after the last, so each sign gets exactly one (possibly empty) piece, nothing repeats without end, and every
output byte belongs to a sign. In training the first sentinel is random, so that all 125 are learned although lines are
short; sentinels count modulo 125.

Ids are those of `google/byt5-*`: 0 pad (also decoder start), 1 end, 2 unknown, byte + 3, sentinels 259-383.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList, T5Config, T5ForConditionalGeneration

from dubsar.models.attention import attention_masks
from dubsar.models.readings import ReadingCounts, Trie

PAD, END, BYTE_OFFSET, FIRST_SENTINEL, SENTINELS, VOCABULARY = 0, 1, 3, 259, 125, 384
IGNORED = -100
BOUNDARY = FIRST_SENTINEL  # what is learned in place of the next sentinel or the end
MAX_PIECE_BYTES = 16
_COMMON_PREFIX = b"\xf0\x92"  # of U+12000-U+12FFF: no information, half of a sign's bytes


def encode_signs(signs: Sequence[str], language: str, *, start: int = 0, compact: bool = True) -> list[int]:
    """Encode a line's signs for the encoder.

    Args:
        signs: code points in order; ``…`` is a lost stretch.
        language: ``akk``, ``hit``, ``xhu``, ``sux``: written first.
        start: number of the first sentinel.
        compact: leave out the two bytes that nearly all cuneiform signs share (4 -> 2 bytes a sign).

    Returns:
        Ids, ending with `END`.
    """
    ids = [b + BYTE_OFFSET for b in language.encode()]
    for index, sign in enumerate(signs):
        data = sign.encode()
        ids.append(sentinel(start + index))
        ids += [b + BYTE_OFFSET for b in (data.removeprefix(_COMMON_PREFIX) if compact else data)]
    return [*ids, END]


def encode_pieces(pieces: Sequence[str], *, start: int = 0) -> list[int]:
    """Encode one piece of text per sign for the decoder; ends with `END`."""
    ids = []
    for index, piece in enumerate(pieces):
        ids.append(sentinel(start + index))
        ids += [b + BYTE_OFFSET for b in piece.encode()]
    return [*ids, END]


def boundary_targets(ids: Sequence[int]) -> list[int]:
    """Return what the decoder is to predict for encoded pieces: bytes, and `BOUNDARY` for each sentinel and the end."""
    return [BOUNDARY if i >= FIRST_SENTINEL or i == END else i for i in ids]


def decode_pieces(ids: Sequence[int]) -> list[str]:
    """Return the pieces of text between sentinels; ids that are no bytes (padding, -100, 384 up) are masked first."""
    pieces: list[bytearray] = []
    for token in ids:
        if FIRST_SENTINEL <= token < FIRST_SENTINEL + SENTINELS:
            pieces.append(bytearray())
        elif BYTE_OFFSET <= token < FIRST_SENTINEL and pieces:
            pieces[-1].append(token - BYTE_OFFSET)
        elif token == END:
            break
    return [p.decode("utf-8", "replace") for p in pieces]


def sentinel(number: int) -> int:
    """Return the id of the sentinel with this number, counted modulo 125."""
    return FIRST_SENTINEL + number % SENTINELS


@dataclass(frozen=True)
class Size:
    """Dimensions of a ByT5 trained from scratch."""

    d_model: int
    d_kv: int
    d_ff: int
    heads: int
    encoder_layers: int
    decoder_layers: int
    dropout: float


class SignAlignedT5(T5ForConditionalGeneration):  # type: ignore[misc]
    """A T5 whose decoder sees, at every position of a piece, the mean of the encoder's states over the sign it reads.

    Adds no parameter, so a ByT5 checkpoint loads as it is; cross-attention goes on as before.

    Attributes:
        readings: counts that decoding leans on (`KnownReadings`); None: the network alone.
        readings_weight: how much, against the network's own log probabilities; 0: not at all.
    """

    readings: ReadingCounts | None = None
    readings_weight: float = 1.0

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: Any = None,
        decoder_input_ids: torch.Tensor | None = None,
        encoder_outputs: Any = None,
        *,
        source_ids: torch.Tensor | None = None,
        decoder_segments: torch.Tensor | None = None,
        source_documents: torch.Tensor | None = None,
        decoder_documents: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run encoder and decoder.

        Rows may hold several lines each, one behind the other: ``source_documents`` (B, L) and ``decoder_documents``
        (B, T) then say which line of its row an id belongs to, -1 for padding, in place of ``attention_mask``. The
        decoder's ids are each line's own start and its target without the last id. Logits are those of each line alone.

        ``source_ids`` (B, L) stand in for ``input_ids`` when the encoder has run already, and ``decoder_segments`` (B,
        T) say which sentinel each decoder id stands under when those before it are in the cache only.
        """
        source_ids = input_ids if source_ids is None else source_ids
        assert source_ids is not None
        assert decoder_input_ids is not None
        encoder_mask: Any = attention_mask
        if source_documents is not None:
            assert decoder_documents is not None
            encoder_mask, kwargs["decoder_attention_mask"], attention_mask = attention_masks(
                self.config._attn_implementation, source_documents, decoder_documents, self.shared.weight.dtype
            )
        if decoder_segments is None:
            decoder_segments = _segments(decoder_input_ids, decoder_documents)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids=input_ids, attention_mask=encoder_mask)
        states_BLD, of_source_BL = encoder_outputs[0], _segments(source_ids, source_documents)
        embeds_BTD = self.shared(decoder_input_ids) + _mean_over_sign(states_BLD, of_source_BL, decoder_segments)
        return super().forward(
            attention_mask=attention_mask, encoder_outputs=encoder_outputs, decoder_inputs_embeds=embeds_BTD, **kwargs
        )

    def prepare_inputs_for_generation(self, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Add to Transformers' inputs which sentinel the newest ids stand under."""
        inputs: dict[str, Any] = super().prepare_inputs_for_generation(input_ids, *args, **kwargs)
        newest = inputs["decoder_input_ids"].shape[1]
        return {**inputs, "decoder_segments": _segments(input_ids)[:, -newest:]}


def _segments(ids_BL: torch.Tensor, documents_BL: torch.Tensor | None = None) -> torch.Tensor:
    """Give each position the sentinel of its sign; -1 before the first sign, at the end, and in padding.

    A sentinel names a sign within its line only: where rows hold several lines, ``documents_BL`` keeps them apart.
    """
    is_sentinel = (ids_BL >= FIRST_SENTINEL) & (ids_BL < FIRST_SENTINEL + SENTINELS)
    position = torch.arange(ids_BL.shape[1], device=ids_BL.device).expand_as(ids_BL)
    last = torch.where(is_sentinel, position, -1).cummax(1).values
    outside = (last < 0) | (ids_BL == END) | (ids_BL == PAD)
    last = last.clamp(min=0)
    signs_BL = ids_BL.gather(1, last)
    if documents_BL is not None:
        outside |= documents_BL.gather(1, last) != documents_BL
        signs_BL = signs_BL + VOCABULARY * documents_BL
    return signs_BL.masked_fill(outside, -1)


def _mean_over_sign(states_BLD: torch.Tensor, of_source_BL: torch.Tensor, of_decoder_BT: torch.Tensor) -> torch.Tensor:
    """Return at each decoder position (B, T, D) the mean of the encoder's states over its sign; 0 where it has none."""
    same_BTL = (of_decoder_BT[:, :, None] == of_source_BL[:, None, :]) & (of_source_BL >= 0)[:, None, :]
    share_BTL = same_BTL / same_BTL.sum(-1, keepdim=True).clamp(min=1)
    return share_BTL.to(states_BLD.dtype) @ states_BLD


def build_transliterator(size: Size, attention: str = "eager") -> SignAlignedT5:
    """Build a ByT5 of an own size with random weights."""
    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=size.d_model,
        d_kv=size.d_kv,
        d_ff=size.d_ff,
        num_heads=size.heads,
        num_layers=size.encoder_layers,
        num_decoder_layers=size.decoder_layers,
        dropout_rate=size.dropout,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=True,  # False would also drop the output scaling: first loss 164 instead of ln 384 = 5.95
        pad_token_id=PAD,
        eos_token_id=END,
        decoder_start_token_id=PAD,
    )
    config._attn_implementation = attention
    return SignAlignedT5(config)


def load_pretrained(name: str, attention: str = "eager") -> SignAlignedT5:
    """Load a ByT5 from a local Hugging Face folder, or from the hub where there is one.

    Raises:
        FileNotFoundError: ``name`` is neither a local folder nor reachable.
        ValueError: the model's vocabulary is not ByT5's 384.
    """
    try:
        model: SignAlignedT5 = SignAlignedT5.from_pretrained(
            name, attn_implementation=attention, local_files_only=Path(name).is_dir(), use_safetensors=True
        )
    except OSError as error:
        raise FileNotFoundError(
            f"{name}: not a local folder with a ByT5, and no hub can be reached; download google/byt5-small "
            "(config.json, model.safetensors) elsewhere and give its folder as model.pretrained"
        ) from error
    if model.config.vocab_size != VOCABULARY:
        raise ValueError(f"{name}: a vocabulary of {model.config.vocab_size}, expected ByT5's {VOCABULARY}")
    return model


class SentinelOrder(LogitsProcessor):  # type: ignore[misc]
    """Allow bytes, and for the score of `BOUNDARY` the next sentinel in turn, or the end after the last.

    A piece that has `MAX_PIECE_BYTES` ends.

    Args:
        counts: signs of each line, one per row of the batch before beams are spread.
        beams: rows per line.
    """

    def __init__(self, counts: Sequence[int], beams: int) -> None:
        self.counts = torch.tensor(counts).repeat_interleave(beams)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Mask ``scores`` (rows, 384) given the ids so far ``input_ids`` (rows, steps)."""
        counts = self.counts.to(scores.device)
        is_sentinel = (input_ids >= FIRST_SENTINEL) & (input_ids < FIRST_SENTINEL + SENTINELS)
        begun = is_sentinel.sum(1)
        steps = torch.arange(input_ids.shape[1], device=scores.device)
        last = torch.where(is_sentinel, steps, -1).max(1).values
        full = (input_ids.shape[1] - 1 - last) >= MAX_PIECE_BYTES
        allowed = torch.zeros_like(scores, dtype=torch.bool)
        allowed[:, BYTE_OFFSET:FIRST_SENTINEL] = ((begun > 0) & ~full)[:, None]
        rows = torch.arange(len(scores), device=scores.device)
        following = torch.where(begun < counts, FIRST_SENTINEL + begun % SENTINELS, END)
        allowed[rows, following] = True
        scores = scores.scatter(1, following[:, None], scores[:, BOUNDARY, None])
        return scores.masked_fill(~allowed, float("-inf"))


class KnownReadings(LogitsProcessor):  # type: ignore[misc]
    """Add what the table of readings says of the next byte; a sign that the table knows gets no other piece.

    Args:
        tries: for each line the trie of each of its signs, None where the table does not know it.
        beams: rows per line.
        weight: of the table's log probabilities beside the network's.
    """

    def __init__(self, tries: Sequence[Sequence[Trie | None]], beams: int, weight: float) -> None:
        self.tries, self.beams, self.weight = tries, beams, weight

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return log probabilities (rows, 384), fused, given the ids so far ``input_ids`` (rows, steps)."""
        fused = scores.log_softmax(1)
        for row, ids in enumerate(input_ids.tolist()):
            begun = [i for i, token in enumerate(ids) if token >= FIRST_SENTINEL]
            line = self.tries[row // self.beams]
            trie = line[len(begun) - 1] if 0 < len(begun) <= len(line) else None
            following = trie.get(tuple(ids[begun[-1] + 1 :])) if trie else None
            if following:
                known = torch.tensor(list(following), device=scores.device)
                shares = torch.tensor(list(following.values()), device=scores.device)
                allowed = fused[row, known] + self.weight * shares
                fused[row] = float("-inf")
                fused[row, known] = allowed
        return fused


@torch.inference_mode()
def transliterate(
    model: SignAlignedT5,
    lines: Sequence[tuple[Sequence[str], str]],
    *,
    compact: bool = True,
    beams: int = 1,
    batch_size: int = 64,
) -> list[tuple[list[str], float]]:
    """Transliterate lines with a KV cache, batched by length.

    Args:
        model: a trained transliterator.
        lines: (signs, language) of each line; a line without signs gives no pieces.
        compact: the sign encoding that the model was trained with.
        beams: 1 is greedy.
        batch_size: lines decoded together.

    Returns:
        For each line its pieces, one per sign, and the mean log probability per id of the decoded sequence.
    """
    results: list[tuple[list[str], float]] = [([], 0.0)] * len(lines)
    order = sorted((i for i, (signs, _) in enumerate(lines) if signs), key=lambda i: len(lines[i][0]))
    for first in range(0, len(order), batch_size):
        rows = order[first : first + batch_size]
        sources = [encode_signs(*lines[i], compact=compact) for i in rows]
        source_BL, mask_BL = pad(sources, PAD), pad([[1] * len(s) for s in sources], 0)
        counts = [len(lines[i][0]) for i in rows]
        order_of_signs: list[LogitsProcessor] = [SentinelOrder(counts, beams)]
        if model.readings is not None and model.readings_weight:
            tries = [model.readings.tries(*lines[i], offset=BYTE_OFFSET, boundary=BOUNDARY) for i in rows]
            order_of_signs.insert(0, KnownReadings(tries, beams, model.readings_weight))
        with torch.autocast(model.device.type, enabled=False):  # a training validates under its own precision
            output = _generate(model, source_BL, mask_BL, order_of_signs, counts=counts, beams=beams)
        for row, i in enumerate(rows):
            pieces = decode_pieces(output["ids"][row])
            results[i] = (pieces + [""] * (counts[row] - len(pieces)), output["scores"][row])
    return results


def pad(rows: Sequence[Sequence[int]], value: int, width: int = 0) -> torch.Tensor:
    """Return rows of ids as one int64 tensor (B, longest, or ``width`` if that is more), padded on the right."""
    longest = max([width, *map(len, rows)])
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])


def _generate(
    model: SignAlignedT5,
    source_BL: torch.Tensor,
    mask_BL: torch.Tensor,
    processors: list[LogitsProcessor],
    *,
    counts: list[int],
    beams: int,
) -> dict[str, list[Any]]:
    device = model.device
    # every step of decoding has another length: blocks compiled for training would be compiled again for each
    with torch.compiler.set_stance("force_eager"):
        output = model.generate(
            input_ids=source_BL.to(device),
            source_ids=source_BL.to(device),
            attention_mask=mask_BL.to(device),
            logits_processor=LogitsProcessorList(processors),
            num_beams=beams,
            do_sample=False,
            # room for the longest piece of every sign: with less, a line's text would depend on those beside it
            max_new_tokens=max(counts) * (1 + MAX_PIECE_BYTES) + 1,
            decoder_start_token_id=PAD,
            pad_token_id=PAD,
            eos_token_id=END,
            return_dict_in_generate=True,
            output_scores=True,
        )
    ids = output.sequences[:, 1:]
    scores = model.compute_transition_scores(
        output.sequences, output.scores, getattr(output, "beam_indices", None), normalize_logits=True
    )
    scores = torch.where(torch.isfinite(scores), scores, 0.0)
    lengths = ((ids == END).cumsum(1) == 0).sum(1) + 1  # beam search pads with END, since PAD is 0
    return {"ids": ids.tolist(), "scores": (scores.sum(1) / lengths).tolist()}


def clean(pieces: Sequence[str]) -> str:
    """Join pieces to a line of text."""
    return re.sub(r"\s+", " ", "".join(pieces)).strip()
