"""What a miniature computes while it trains, by name and in the order of execution."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._pytree import tree_leaves

from dubsar.models.transliterator import IGNORED
from dubsar.pipelines.stages.detect import DetectSystem
from dubsar.pipelines.stages.pretrain import PretrainSystem
from dubsar.pipelines.stages.transliterate import TransliterateSystem

ASSIGNER = "TaskAlignedAssigner"  # Ultralytics' choice of the anchors that are to find a sign
SAMPLED = 2**16  # elements kept of a module's output
Choices = tuple[Tensor, ...]


@dataclass
class Record:
    """What was computed.

    Attributes:
        examples: what the first batch gave, example by example, so that it does not depend on how they are laid out.
        modules: of the first batch the outputs of all modules, and named parts of the loss.
        choices: what detect's loss has chosen: discrete, so that rounding can turn it over.
        gradients: of the first optimizer step, by parameter.
        losses: of each batch.
        hashes: of each optimizer step loss, gradients and weights.
        weights: parameters and buffers at the end.
    """

    examples: dict[str, Tensor] = field(default_factory=dict)
    modules: dict[str, Tensor] = field(default_factory=dict)
    choices: list[Choices] = field(default_factory=list)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    losses: list[Tensor] = field(default_factory=list)
    hashes: list[dict[str, str]] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)

    @property
    def forward(self) -> dict[str, Tensor]:
        """All that the first batch gave, its loss at the end."""
        return {**self.modules, **self.examples, "loss": self.losses[0]}


class Recorder(Callback):  # type: ignore[misc]
    """Keep a `Record` of a training.

    Args:
        choices: what detect's loss is to choose, taken from another record; its own choice where None.
        hashed: whether every step is hashed.
    """

    def __init__(self, choices: list[Choices] | None = None, *, hashed: bool = False) -> None:
        self.record, self.choices, self.hashed = Record(), choices, hashed
        self._calls: Counter[str] = Counter()
        self._undo: list[Callable[[], Any]] = []
        self._batch: Any = None

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Watch the first batch."""
        if batch_idx == 0:
            self._batch = batch
            self._undo = [*self._watch_modules(pl_module.network), *self._watch_examples(pl_module)]

    def on_before_backward(self, trainer: L.Trainer, pl_module: Any, loss: Tensor) -> None:
        """Stop watching: with activation checkpointing, backward calls modules again."""
        while self._undo:
            self._undo.pop()()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, outputs: Any, *rest: Any) -> None:
        """Keep loss and gradients; Lightning zeroes gradients only in the next batch, behind its forward pass."""
        self.record.losses.append(outputs["loss"].detach().clone())
        gradients = {n: p.grad.detach() for n, p in pl_module.network.named_parameters() if p.grad is not None}
        if trainer.global_step == 1 and not self.record.gradients:
            self.record.gradients = {n: g.clone() for n, g in gradients.items()}
        if self.hashed:
            named = {"loss": self.record.losses[-1]}
            named |= {f"gradient of {n}": g for n, g in gradients.items()}
            named |= {f"weight {n}": w for n, w in _weights(pl_module.network)}
            self.record.hashes.append({name: digest(tensor) for name, tensor in named.items()})

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Keep the trained weights; an average of them is put in their place behind this."""
        self.record.weights = {n: w.detach().clone() for n, w in _weights(pl_module.network)}

    def _watch_modules(self, network: nn.Module) -> Iterator[Callable[[], Any]]:
        """Hook all modules that compute, but none inside of a compiled one: its kernels would be cut there.

        What only hands on is left out: a softmax in 16 bits in front of it is rounded by the next product in any case.
        """
        compiled = [m for m in network.modules() if m._compiled_call_impl is not None]
        inside = {part for whole in compiled for part in whole.modules() if part is not whole}
        for name, module in network.named_modules():
            if module not in inside and not isinstance(module, nn.Dropout | nn.Identity):
                yield module.register_forward_hook(self._keep_output(name or "network")).remove

    def _keep_output(self, name: str) -> Callable[..., None]:
        def keep(module: nn.Module, _: Any, output: Any) -> None:
            self._calls[name] += 1
            call = f"{name} (call {self._calls[name]})" if self._calls[name] > 1 else name
            # of several outputs the first: some kernels give attention weights besides, others none
            first = output[0] if isinstance(output, tuple) and output else output
            tensors = [t for t in tree_leaves(first) if isinstance(t, Tensor) and t.is_floating_point()]
            for number, tensor in enumerate(tensors):
                self.record.modules[f"{call}[{number}]" if len(tensors) > 1 else call] = _sampled(tensor)

        return keep

    def _watch_examples(self, system: Any) -> Iterator[Callable[[], Any]]:
        match system:
            case TransliterateSystem():
                yield self._replace(system, "logits", self._keep_lines(system.logits))
            case PretrainSystem():
                yield system.network.student.cls_head.register_forward_hook(self._keep_examples("view")).remove
            case DetectSystem():
                yield self._replace(system.network, "loss", self._keep_loss_parts(system.network.loss))
                yield system.network.register_forward_hook(self._keep_examples("tile")).remove
            case _:
                yield system.network.register_forward_hook(self._keep_examples("crop")).remove

    def _replace(self, holder: Any, name: str, function: Callable[..., Any]) -> Callable[[], Any]:
        before = vars(holder).get(name)
        vars(holder)[name] = function
        return lambda: vars(holder).pop(name) if before is None else vars(holder).update({name: before})

    def _keep_examples(self, kind: str) -> Callable[..., None]:
        def keep(module: nn.Module, _: Any, output: Any) -> None:
            parts = {k: output[k] for k in ("boxes", "scores")} if isinstance(output, dict) else {"logits": output}
            for name, tensor_B in parts.items():
                for number, row in enumerate(tensor_B.detach()):
                    self.record.examples[f"{name} of {kind} {number}"] = row.clone()

        return keep

    def _keep_lines(self, logits: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Wrap `TransliterateSystem.logits`, which is called once for each rectangle of the batch, in turn."""
        rectangles = iter(self._batch)
        numbers = {line: n for n, line in enumerate(sorted({i for r in self._batch for i, *_ in lines(r)}))}

        def keep(ids: dict[str, Tensor]) -> Tensor:
            logits_BTV = logits(ids)
            for line, row, at_T in lines(next(rectangles)):
                self.record.examples[f"logits of line {numbers[line]}"] = logits_BTV[row][at_T].detach().clone()
            return logits_BTV

        return keep

    def _keep_loss_parts(self, loss: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `Detector.loss`: anchors, decoded boxes and the parts of the loss are no module's output."""

        def keep(predictions: Any, batch: Any) -> Any:
            handle = register_module_forward_hook(self._choose)
            try:
                total, parts = loss(predictions, batch)
            finally:
                handle.remove()
            self.record.modules |= {name.replace("_", " "): part.detach().clone() for name, part in parts.items()}
            return total, parts

        return keep

    def _choose(self, module: nn.Module, inputs: Sequence[Any], output: Any) -> Any:
        if type(module).__name__ != ASSIGNER:
            return None
        _, boxes_BA4, anchors_A2, *_ = inputs
        self.record.modules["anchor points"] = anchors_A2.detach().clone()
        self.record.modules["decoded boxes"] = boxes_BA4.detach().clone()
        self.record.choices.append(tuple(t.detach().clone() for t in output))
        if self.choices is None:
            return None
        wanted = self.choices[len(self.record.choices) - 1]
        return tuple(theirs.to(own.dtype) for theirs, own in zip(wanted, output, strict=True))


def lines(rectangle: dict[str, Tensor]) -> Iterator[tuple[tuple[int, tuple[int, ...], tuple[int, ...]], int, Tensor]]:
    """Find the lines of a rectangle of transliterate, padded or packed.

    Yields:
        What the line is, whatever the layout (length, source ids, target ids), its row, and which ids of the row's
        target are its own (T,).
    """
    source_BL, target_BT = rectangle["source_BL"], rectangle["target_BT"]
    packed = "source_documents_BL" in rectangle
    source_documents_BL = rectangle["source_documents_BL"] if packed else rectangle["mask_BL"] - 1
    target_documents_BT = rectangle["decoder_documents_BT"] if packed else (target_BT != IGNORED).long() - 1
    for row, documents_L in enumerate(source_documents_BL):
        for document in range(int(documents_L.max()) + 1):
            source = tuple(source_BL[row][documents_L == document].tolist())
            at_T = target_documents_BT[row] == document
            target = tuple(target_BT[row][at_T].tolist())
            yield (len(source), source, target), row, at_T


def _sampled(tensor: Tensor) -> Tensor:
    """Return evenly spread elements (n,) of a tensor, at most about `SAMPLED`."""
    step = tensor.numel() // SAMPLED | 1  # odd: an even one would meet a few of the channels only
    return tensor.detach().reshape(-1)[::step].clone()


def digest(tensor: Tensor) -> str:
    """Return a hash of a tensor's bits."""
    plain = tensor.detach().cpu().contiguous()
    return hashlib.sha256(plain.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def _weights(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from network.named_parameters()
    yield from network.named_buffers()
