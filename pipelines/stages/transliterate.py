"""Transliteration: a line's signs in, its text out, by a ByT5 that knows which sign it is reading.

It learns the reading of each sign in context (values, logograms, determinatives, word division) from line pairs; the
sentinel alignment is described in `dubsar.models.transliterator`.

    dubsar train transliterate                          # configs/transliterate.yaml
    dubsar train transliterate --config configs/debug/transliterate.yaml
    dubsar evaluate transliterate --split test

Reads ``akkadian-oracc-lines`` and ``hittite-lines`` below the data root; writes ``runs/transliterate/<name>/``.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import torch

from dubsar.configs.schema import TransliterateConfig, TransliterateData
from dubsar.datasets.alignment import ReadingTable, align
from dubsar.datasets.lines import LinePair, read_line_pairs
from dubsar.datasets.sources import data_root
from dubsar.datasets.text import CANONICAL_FORM
from dubsar.models.checkpoint import save_model
from dubsar.models.readings import ReadingCounts
from dubsar.models.transliterator import (
    IGNORED,
    PAD,
    SENTINELS,
    boundary_targets,
    clean,
    encode_pieces,
    encode_signs,
    pad,
    transliterate,
)
from dubsar.pipelines.levers.resolve import Resolved, resolve_config
from dubsar.pipelines.metrics import TextScores, score_text
from dubsar.pipelines.networks import READINGS, build_byt5
from dubsar.pipelines.optim import build_optimizer, clip_gradients
from dubsar.pipelines.stream import Stream
from dubsar.pipelines.training import RunFolder, build_trainer, fit, is_first_rank, model_card, open_run

LICENCE = "Weights: CC BY-SA 4.0. Data: Oracc CC0; TLHdig CC BY 4.0; UD_Hittite-HitTB CC BY-SA 4.0."


@dataclass(frozen=True)
class Example:
    """One line: code points, one piece of text per sign, and the three-letter language."""

    signs: tuple[str, ...]
    pieces: tuple[str, ...]
    language: str


class TransliterateSystem(L.LightningModule):  # type: ignore[misc]
    """Cross-entropy per target id, summed over the step's ids and divided by their number."""

    def __init__(
        self, network: Any, dev: dict[str, list[LinePair]], config: TransliterateConfig, levers: Resolved
    ) -> None:
        super().__init__()
        self.network, self.dev, self.config, self.levers = network, dev, config, levers
        self.compact = config.model.sign_encoding == "compact"
        self.step_ids: Any = 0  # target ids since the last optimizer step

    def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
        """Return the sum of the losses of all target ids; logits go to float32 before the softmax."""
        logits_BTV = self.network(
            input_ids=batch["source_BL"], attention_mask=batch["mask_BL"], decoder_input_ids=batch["decoder_BT"]
        ).logits.float()
        target = batch["target_BT"].flatten()
        loss = torch.nn.functional.cross_entropy(
            logits_BTV.flatten(0, 1), target, ignore_index=IGNORED, reduction="sum"
        )
        ids = (target != IGNORED).sum()
        self.step_ids = self.step_ids + ids
        self.log("train/loss", loss.detach() / ids)
        return loss

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Divide by the target ids of the whole step.

        Lightning has taken the mean over micro-batches and ranks; a mean of means would weigh short ones too high.
        """
        ids = self.trainer.strategy.reduce(self.step_ids, reduce_op="sum")
        share = self.trainer.accumulate_grad_batches * self.trainer.world_size / ids
        torch._foreach_mul_([p.grad for p in self.network.parameters() if p.grad is not None], share)
        self.step_ids = 0

    def validation_step(self, batch: torch.Tensor, _: int) -> None:
        """Decode dev lines greedily, source by source; ``val/cer`` is the mean over sources."""
        rates = []
        for source, lines in self.dev.items():
            scores = score_lines(self.network, lines, compact=self.compact)
            self.log_dict({f"val/cer_{source}": scores.cer, f"val/ser_{source}": scores.ser})
            rates.append(scores.cer)
        self.log("val/cer", sum(rates) / len(rates))

    def configure_optimizers(self) -> dict[str, Any]:
        """AdamW with warm-up."""
        fused, swa = self.levers["fused_optimizer"], self.levers["swa"]
        return build_optimizer(self.network, self.config.optim, self.config.trainer.max_steps, fused=fused, swa=swa)

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """Clip here: Lightning's own clipping refuses fused AdamW under bf16."""
        clip_gradients(self.network, self.config.trainer.clip_norm)


class LineStream(Stream):
    """Batches of lines, encoded anew each time: the first sentinel is random, and some lines get a random break."""

    def __init__(
        self, examples: list[Example], data: TransliterateData, *, compact: bool, bucket: bool, seed: int
    ) -> None:
        self.examples, self.compact, self.broken_noise, self.seed = examples, compact, data.broken_noise, seed
        lengths = [sum(map(len, self.encode(e, 0).values())) for e in examples]
        self.batches = TokenBudget(lengths, data.batch_tokens, bucket=bucket, seed=seed)

    def batch(self, number: int) -> dict[str, torch.Tensor]:
        """Return padded ids, see `collate`."""
        rng = random.Random(f"{self.seed}/batch/{number}")
        return collate([self._draw(self.examples[i], rng) for i in self.batches[number]])

    def counts(self) -> dict[str, int]:
        """Count lines, with their repeats, and the ids that their text takes."""
        ids = sum(len(self.encode(e, 0)["target"]) for e in self.examples)
        return {"lines": len(self.examples), "target ids": ids}

    def _draw(self, example: Example, rng: random.Random) -> dict[str, list[int]]:
        start, cut = rng.randrange(SENTINELS), rng.randrange(SENTINELS)
        if rng.random() < self.broken_noise and len(example.signs) > 3:
            signs, pieces = break_line(example.signs, example.pieces, cut % len(example.signs), 1 + cut % 4)
            example = Example(signs, pieces, example.language)
        return self.encode(example, start)

    def encode(self, example: Example, start: int) -> dict[str, list[int]]:
        """Return ids ``source`` and ``target`` of one line."""
        return {
            "source": encode_signs(example.signs, example.language, start=start, compact=self.compact),
            "target": encode_pieces(example.pieces, start=start),
        }


def break_line(
    signs: tuple[str, ...], pieces: tuple[str, ...], first: int, count: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Replace ``count`` signs from ``first`` on by one lost stretch, in source and target alike."""
    lost = " …" if first else "…"
    return (
        (*signs[:first], "…", *signs[first + count :]),
        (*pieces[:first], lost, *pieces[first + count :]),
    )


class TokenBudget:
    """Batches of at most ``budget`` padded ids, numbered without end; with ``bucket`` lines of like length go together.

    Lengths are sorted inside shuffled windows only, and batches are shuffled, so that no epoch runs from short to long.
    A line that is longer than the budget is a batch of its own.
    """

    def __init__(self, lengths: Sequence[int], budget: int, *, bucket: bool, seed: int) -> None:
        self.lengths, self.budget, self.bucket, self.seed = lengths, budget, bucket, seed
        self._start_epoch(0, 0)

    def __getitem__(self, number: int) -> list[int]:
        """Return the lines' indices of batch ``number``; epochs follow one another."""
        if number < self._first:
            self._start_epoch(0, 0)
        while number >= self._first + len(self._current):
            self._start_epoch(self._epoch + 1, self._first + len(self._current))
        return self._current[number - self._first]

    def _start_epoch(self, epoch: int, first: int) -> None:
        self._epoch, self._first, self._current = epoch, first, self.epoch(epoch)

    def epoch(self, epoch: int) -> list[list[int]]:
        """Return all batches of an epoch; each line is in one of them."""
        rng = random.Random(f"{self.seed}/{epoch}")
        order = list(range(len(self.lengths)))
        rng.shuffle(order)
        batches: list[list[int]] = []
        for first in range(0, len(order), 4096):
            window = order[first : first + 4096]
            if self.bucket:
                window.sort(key=lambda i: self.lengths[i])
            batches += self._fill(window)
        rng.shuffle(batches)
        return batches

    def _fill(self, order: list[int]) -> list[list[int]]:
        batches: list[list[int]] = [[]]
        longest = 0
        for index in order:
            longest = max(longest, self.lengths[index])
            if batches[-1] and longest * (len(batches[-1]) + 1) > self.budget:
                batches.append([])
                longest = self.lengths[index]
            batches[-1].append(index)
        return [b for b in batches if b]


def collate(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Pad encoded lines to tensors (B, L) and (B, T); the decoder starts with `PAD`."""
    sources, targets = [r["source"] for r in rows], [r["target"] for r in rows]
    return {
        "source_BL": pad(sources, PAD),
        "mask_BL": pad([[1] * len(s) for s in sources], 0),
        "decoder_BT": pad([[PAD, *t[:-1]] for t in targets], PAD),
        "target_BT": pad([boundary_targets(t) for t in targets], IGNORED),
    }


def prepare(data: TransliterateData, root: Path) -> tuple[list[Example], dict[str, list[LinePair]]]:
    """Read and align the training lines, and pick the dev lines that choose the checkpoint.

    Returns:
        Training examples, and dev lines per source (Hittite without Hurrian).
    """
    examples: list[Example] = []
    dev: dict[str, list[LinePair]] = {}
    for source in data.sources:
        pairs = read_line_pairs(root, source, "train")[: data.limit or None]
        table = ReadingTable.count((p.signs, p.translit) for p in pairs)
        aligned = [_example(p, table) for p in pairs if len(p.signs) <= data.max_signs]
        kept = [e for e in aligned if e is not None]
        print(
            f"{source}: {len(kept)} of {len(pairs)} training lines used; the others are too long or cannot be aligned"
        )
        examples += kept * (data.hittite_repeat if source == "hittite" else 1)
        dev_lines = [p for p in read_line_pairs(root, source, "dev") if p.language != "xhu"]
        step = max(1, -(-len(dev_lines) // data.val_lines)) if data.val_lines else 1
        dev[source] = dev_lines[::step]
    return examples, dev


def _example(pair: LinePair, table: ReadingTable) -> Example | None:
    parts = align(pair.signs, pair.translit, table)
    return Example(tuple(pair.signs), tuple(parts), pair.language[:3]) if parts else None


def score_lines(network: Any, lines: list[LinePair], *, compact: bool, beams: int = 1) -> TextScores:
    """Transliterate line pairs and score them in full."""
    network.eval()
    results = transliterate(network, [(tuple(p.signs), p.language[:3]) for p in lines], compact=compact, beams=beams)
    return score_text([clean(pieces) for pieces, _ in results], [p.translit for p in lines])


def build(config: TransliterateConfig, levers: Resolved) -> tuple[TransliterateSystem, LineStream]:
    """Turn the config into a system and its training batches."""
    model, data = config.model, config.data
    network = build_byt5(config, attention="sdpa" if levers["attention"] == "sdpa" else "eager")
    apply_levers(network, levers)
    examples, dev = prepare(data, data_root())
    if not examples:
        raise ValueError(
            f"data: no training line is left of {', '.join(data.sources)}; raise data.max_signs or data.limit"
        )
    network.readings = count_readings(examples)
    network.readings_weight = model.readings_weight
    stream = LineStream(
        examples,
        data,
        compact=model.sign_encoding == "compact",
        bucket=levers["packing"] == "bucket",
        seed=config.trainer.seed,
    )
    return TransliterateSystem(network, dev, config, levers), stream


def count_readings(examples: list[Example]) -> ReadingCounts:
    """Count how each sign is read, each line once however often it is repeated in training."""
    return ReadingCounts.of((e.signs, e.pieces, e.language) for e in dict.fromkeys(examples))


def apply_levers(network: Any, levers: Resolved) -> None:
    """Set those levers that act on the network itself; attention is chosen when it is built."""
    if levers["checkpointing"] == "full":
        network.gradient_checkpointing_enable({"use_reentrant": False})
    if levers["compile"] == "full":
        network.compile(mode=levers["compile_mode"], dynamic=False)
    elif levers["compile"] == "per_block":
        for block in (*network.encoder.block, *network.decoder.block):
            block.compile(mode=levers["compile_mode"])


def run(
    config: TransliterateConfig, folder: Path, *, resume: bool = False, overwrite: bool = False
) -> dict[str, float]:
    """Train, keep and write the weights that are best on dev, and return their dev scores (on the first rank)."""
    levers = resolve_config(config)
    system, stream = build(config, levers)
    trainer = build_trainer(config, RunFolder(folder), levers, monitor="val/cer", mode="min")
    run_folder = open_run(folder, config, levers, resume=resume, overwrite=overwrite)
    fit(trainer, system, stream, run_folder, resume=resume)
    if not is_first_rank(config.trainer):
        return {}
    scores = {
        source: score_lines(system.network, lines, compact=system.compact).to_dict()
        for source, lines in system.dev.items()
    }
    card = model_card(
        config,
        scores,
        architecture=system.network.config.to_dict(),
        text_form=CANONICAL_FORM,
        licence=LICENCE,
    )
    state = system.network.state_dict() | {READINGS: count_readings(stream.examples).pruned().to_tensor()}
    save_model(folder / "transliterate", state, card)
    return {f"{source}/{k}": v for source, s in scores.items() for k, v in s.items()}
