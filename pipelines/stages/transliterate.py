"""Transliteration: a line's signs in, its text out, by a ByT5 that knows which sign it is reading.

It learns the reading of each sign in context (values, logograms, determinatives, word division) from line pairs; the
sentinel alignment is described in `dubsar.models.transliterator`.

    dubsar train transliterate                          # configs/transliterate.yaml
    dubsar train transliterate --config configs/debug/transliterate.yaml
    dubsar evaluate transliterate --split test

Reads ``akkadian-oracc-lines`` and ``hittite-lines`` below the data root; writes ``runs/transliterate/<name>/``.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import torch

from dubsar.configs.schema import TransliterateConfig, TransliterateData
from dubsar.datasets.alignment import ReadingTable, align
from dubsar.datasets.lines import LinePair, read_line_pairs
from dubsar.datasets.packing import (
    Capacity,
    Layout,
    PackedSteps,
    PackingStatistics,
    as_lengths,
    choose_layout,
    lay_out,
    own_lengths,
)
from dubsar.datasets.sources import data_root
from dubsar.datasets.text import CANONICAL_FORM
from dubsar.models.adapters import merge_adapters
from dubsar.models.checkpoint import save_model
from dubsar.models.precision import at_least_float32
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
from dubsar.pipelines.levers.apply import apply_levers
from dubsar.pipelines.levers.resolve import Resolved, resolve_config
from dubsar.pipelines.metrics import TextScores, score_text
from dubsar.pipelines.networks import READINGS, build_byt5
from dubsar.pipelines.optim import build_optimizer, clip_gradients
from dubsar.pipelines.stream import Stream
from dubsar.pipelines.training import RunFolder, build_trainer, fit, is_first_rank, model_card, open_run

LONGER_BY_A_BREAK = (2, 4)  # ids of source and target by which `break_line` can make a line longer
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

    def training_step(self, rectangles: list[dict[str, torch.Tensor]], _: int) -> torch.Tensor:
        """Return the sum of the losses of all target ids; logits go to float32 before the softmax."""
        losses, ids = zip(*map(self.summed_loss, rectangles), strict=True)
        loss, count = torch.stack(losses).sum(), torch.stack(ids).sum()
        self.step_ids = self.step_ids + count
        self.log("train/loss", loss.detach() / count)
        return loss

    def summed_loss(self, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the summed loss of a rectangle's target ids, and their number."""
        target, logits_NV = batch["target_BT"].flatten(), self.logits(batch).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits_NV, target, ignore_index=IGNORED, reduction="sum")
        return loss, (target != IGNORED).sum()

    def logits(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return logits (B, T, 384) of a rectangle, in float32 at least."""
        logits_BTV: torch.Tensor = self.network(
            input_ids=batch["source_BL"],
            attention_mask=batch.get("mask_BL"),
            decoder_input_ids=batch["decoder_BT"],
            source_documents=batch.get("source_documents_BL"),
            decoder_documents=batch.get("decoder_documents_BT"),
            use_cache=False,
        ).logits
        return at_least_float32(logits_BTV)

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
    """The lines of each optimizer step, laid out in rectangles (`dubsar.datasets.packing`).

    Lines are encoded anew each time: the first sentinel is random, and some lines get a random break. Which lines a
    step has, and how they are drawn, does not depend on the layout.
    """

    def __init__(
        self, examples: list[Example], data: TransliterateData, *, compact: bool, seed: int, device: str = "cpu"
    ) -> None:
        self.examples, self.compact, self.broken_noise, self.seed = examples, compact, data.broken_noise, seed
        self.layout: Layout = "off"
        self.device = device
        encoded = [self.encode(e, 0) for e in examples]
        lengths_N2 = as_lengths([(len(e["source"]), len(e["target"])) for e in encoded])
        if data.broken_noise:
            lengths_N2 = lengths_N2 + LONGER_BY_A_BREAK
        capacity = Capacity.of(lengths_N2)
        self.steps = PackedSteps(lengths_N2, capacity, max(1, data.batch_tokens // capacity.ids), seed)

    def batch(self, number: int) -> list[dict[str, torch.Tensor]]:
        """Return the rectangles of a step, see `collate`."""
        rng = random.Random(f"{self.seed}/batch/{number}")
        packs = self.steps[number]
        encoded = [self._draw(self.examples[index], rng) for row in packs for index in row]
        _, own_packs = own_lengths(self.steps.lengths_N2, packs)
        lengths_N2 = as_lengths([(len(e["source"]), len(e["target"])) for e in encoded])
        rectangles = lay_out(lengths_N2, own_packs, self.layout, self.device)
        capacity = self.steps.capacity if self.layout == "pack" else None
        return [collate([[encoded[i] for i in row] for row in rows], capacity) for rows in rectangles]

    def epoch_batches(self) -> int:
        """Return how many steps hold every line once."""
        return len(self.steps.epoch(0))

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


def collate(rows: list[list[dict[str, list[int]]]], capacity: Capacity | None = None) -> dict[str, torch.Tensor]:
    """Make one rectangle of encoded lines: a line a row, or with a capacity several lines one behind the other.

    The decoder's input is made per line: `PAD`, then the target without its last id.

    Args:
        rows: the encoded lines of each row.
        capacity: width of source and target; without it that of the longest line.

    Returns:
        ``source_BL``, ``decoder_BT``, ``target_BT`` (`IGNORED` where there is none), and either ``mask_BL`` or, for
        packed rows, ``source_documents_BL`` and ``decoder_documents_BT``: the number of the line within its row, -1
        for padding.
    """
    source, target = (capacity.source, capacity.target) if capacity else (0, 0)

    def joined(ids_of: Callable[[int, dict[str, list[int]]], list[int]], padding: int, width: int) -> torch.Tensor:
        return pad([[i for n, line in enumerate(row) for i in ids_of(n, line)] for row in rows], padding, width)

    rectangle = {
        "source_BL": joined(lambda _, line: line["source"], PAD, source),
        "decoder_BT": joined(lambda _, line: [PAD, *line["target"][:-1]], PAD, target),
        "target_BT": joined(lambda _, line: boundary_targets(line["target"]), IGNORED, target),
    }
    if capacity is None:
        return rectangle | {"mask_BL": joined(lambda _, line: [1] * len(line["source"]), 0, source)}
    return rectangle | {
        "source_documents_BL": joined(lambda n, line: [n] * len(line["source"]), -1, source),
        "decoder_documents_BT": joined(lambda n, line: [n] * len(line["target"]), -1, target),
    }


Prepared = tuple[list[Example], dict[str, list[LinePair]]]


def prepare(config: TransliterateConfig, root: Path) -> Prepared:
    """Read and align the training lines, and pick the dev lines that choose the checkpoint.

    Returns:
        Training examples, and dev lines per source (Hittite without Hurrian).

    Raises:
        ValueError: no training line is left.
    """
    data = config.data
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
    if not examples:
        raise ValueError(
            f"data: no training line is left of {', '.join(data.sources)}; raise data.max_signs or data.limit"
        )
    return examples, dev


def _example(pair: LinePair, table: ReadingTable) -> Example | None:
    parts = align(pair.signs, pair.translit, table)
    return Example(tuple(pair.signs), tuple(parts), pair.language[:3]) if parts else None


def score_lines(network: Any, lines: list[LinePair], *, compact: bool, beams: int = 1) -> TextScores:
    """Transliterate line pairs and score them in full."""
    network.eval()
    results = transliterate(network, [(tuple(p.signs), p.language[:3]) for p in lines], compact=compact, beams=beams)
    return score_text([clean(pieces) for pieces, _ in results], [p.translit for p in lines])


def build(
    config: TransliterateConfig, levers: Resolved, prepared: Prepared | None = None
) -> tuple[TransliterateSystem, LineStream]:
    """Turn the config into a system and its training batches.

    Args:
        config: the stage's config.
        levers: what became of its efficiency block.
        prepared: what `prepare` gave, where several systems are built on the same data.

    Raises:
        ValueError: the data (see `prepare`) or a lever cannot be used.
    """
    model, data = config.model, config.data
    network = build_byt5(config, attention=levers["attention"])
    examples, dev = prepared or prepare(config, data_root())
    network.readings = count_readings(examples)
    network.readings_weight = model.readings_weight
    device = "cpu" if config.trainer.accelerator == "cpu" or not torch.cuda.is_available() else "cuda"
    stream = LineStream(
        examples, data, compact=model.sign_encoding == "compact", seed=config.trainer.seed, device=device
    )
    if levers["packing"] != "off":
        statistics = PackingStatistics.of(stream.steps, device)
        stream.layout, why = choose_layout(levers["packing"], statistics, device)
        print(f"{statistics}\npacking: {stream.layout}" + (f" ({why})" if why else ""))
    apply_levers(network, levers, static=stream.layout == "pack")
    return TransliterateSystem(network, dev, config, levers), stream


def count_readings(examples: list[Example]) -> ReadingCounts:
    """Count how each sign is read, each line once however often it is repeated in training."""
    return ReadingCounts.of((e.signs, e.pieces, e.language) for e in dict.fromkeys(examples))


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
    merge_adapters(system.network)
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
