"""What `dubsar ensemble` does: find the weights by which trained classifiers vote, and write them as one file.

Weights on the simplex and temperatures make the negative log likelihood of the dev signs as small as can be. These few
numbers are fitted to few tablets, so the same is done with each tablet left out in turn: what the ensemble then says of
that tablet tells how much of the gain is fitted. Test is never looked at here.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.table import Table

from dubsar.configs.schema import ClassifyConfig
from dubsar.datasets.crops import CropSize
from dubsar.datasets.sources import require_outside_data
from dubsar.models.backbones import SignClassifier
from dubsar.models.checkpoint import ModelFile, save_model
from dubsar.models.ensemble import SignEnsemble
from dubsar.pipelines.console import print_table
from dubsar.pipelines.member_scores import Floats, gains, member_views
from dubsar.pipelines.metrics import score_classes
from dubsar.pipelines.networks import find_device, inventory_of, load_classifier
from dubsar.pipelines.reading.engine import classify_crops, margins, mean_probabilities
from dubsar.pipelines.ship import training_seconds
from dubsar.pipelines.signs import open_common_signs
from dubsar.pipelines.stages.classify import Crops, read_crops
from dubsar.pipelines.training import commit, model_card

STEPS = 100  # of L-BFGS; a dozen numbers are found in a third of them
_WIDEST = 3.0  # of the logarithm of a temperature: 0.05 to 20
_LEAST = 1e-3  # weight at the start of a search: from nothing no slope leads back
Views = Sequence[torch.Tensor]  # a member's logits (N, classes) of each margin


@dataclass(frozen=True)
class Member:
    """A trained classifier that is to vote."""

    name: str
    network: SignClassifier
    config: ClassifyConfig
    file: ModelFile
    seconds: float | None  # of its training

    @property
    def size(self) -> CropSize:
        """How it wants crops to be cut."""
        return CropSize(self.config.data.crop_px, self.config.data.context)


@dataclass(frozen=True)
class Votes:
    """The weight and the temperature of each member, and the negative log likelihood that they give, nats a sign."""

    weights: tuple[float, ...]
    temperatures: tuple[float, ...]
    nll: float


def ensemble(paths: Sequence[Path], out: Path, *, device: str = "auto", overwrite: bool = False) -> Votes:
    """Find the votes of trained classifiers on dev, write them as one file, and print what is gained.

    Args:
        paths: run folders or weights of classify, two or more.
        out: folder for ``classify.safetensors`` and its card.
        device: where the members compute.
        overwrite: replace an ensemble that is there.

    Raises:
        ValueError: the members cannot vote together, see `load_members`, or ``out`` lies in the data folder.
        FileExistsError: there are weights already.
        FileNotFoundError, CheckpointError: weights are absent or damaged.
    """
    require_outside_data(out, "--out")
    if (out / "classify.safetensors").exists() and not overwrite:
        raise FileExistsError(f"{out / 'classify.safetensors'}: there already; give another folder, or --overwrite")
    found = find_device(device)
    members = load_members(paths)
    for member in members:
        member.network.to(found)
    inventory = inventory_of(members[0].file, paths[0])
    signs = open_common_signs([(path, m.config.data) for path, m in zip(paths, members, strict=True)])
    cut = partial(read_crops, signs, "dev", inventory=inventory)
    own, crops = member_views([m.network for m in members], [m.size for m in members], lambda size: cut(size=size))
    largest = max((m.size for m in members), key=lambda size: size.crop_px)
    shown = _shown(members, own, [cut(size=margin) for margin in margins(largest)], largest)
    votes = fit_votes(shown, crops.classes_N)
    left_out = vote_left_out(shown, crops, votes)
    alone = [fit_votes([views], crops.classes_N) for views in own]
    read = [mean_probabilities(v, a.temperatures[0]).numpy() for v, a in zip(own, alone, strict=True)]
    best = int(np.argmax([score_classes(found_NC, crops.classes_N).top1 for found_NC in read]))
    rows = {"ensemble": mixed(shown, votes), "the same, each tablet by votes that were found without it": left_out}
    _print(members, read, rows, votes, best, crops)
    network = SignEnsemble([m.network for m in members], [m.size.crop_px for m in members], *_numbers(votes))
    scores = score_classes(rows["ensemble"], crops.classes_N).to_dict() | {"nll": votes.nll}
    save_model(out / "classify", network.state_dict(), ensemble_card(members, votes, best, scores, inventory))
    print(f"{out / 'classify'}.safetensors: {(out / 'classify.safetensors').stat().st_size / 1e6:.1f} MB in float32")
    return votes


def load_members(paths: Sequence[Path]) -> list[Member]:
    """Load classifiers that are to vote together.

    Args:
        paths: run folders or weights.

    Raises:
        ValueError: fewer than two, one of them twice, one that is an ensemble itself, or crops cut in different ways.
        InventoryMismatch: they were made for different sign classes.
        FileNotFoundError, CheckpointError: see `load_classifier`.
    """
    if len(paths) < 2:
        raise ValueError(f"{len(paths)} classifier given, expected two or more: runs, or weights of classify")
    members: list[Member] = []
    names: Counter[str] = Counter()
    for path in paths:
        network, config, file = load_classifier(path)
        if isinstance(network, SignEnsemble):
            raise ValueError(f"{path}: an ensemble already; give its members one by one")
        if file.card["sha256"] in {m.file.card["sha256"] for m in members}:
            raise ValueError(f"{path}: these weights are given twice; a member votes once")
        if members:
            inventory_of(members[0].file, paths[0]).require(file.card["inventory_hash"], str(path))
            first = members[0].config.data.context
            if config.data.context != first:
                raise ValueError(
                    f"{path}: trained on crops with data.context={config.data.context:g}, but {paths[0]} with "
                    f"{first:g}; members see one crop, so train them with one context"
                )
        names[config.name] += 1
        name = config.name if names[config.name] == 1 else f"{config.name}-{names[config.name]}"
        log = path / "metrics.jsonl"
        seconds = training_seconds(path) if log.exists() else file.card.get("training_seconds")
        members.append(Member(name, network, config, file, seconds))
    return members


def fit_votes(views: Sequence[Views], truth_N: npt.NDArray[np.int64], start: Votes | None = None) -> Votes:
    """Find weights and temperatures that give the true classes the greatest likelihood, as reading averages margins.

    First the temperature of each member alone; then the weights, and one factor for all temperatures, since the mean of
    several opinions is flatter than each. Were all temperatures free, one of them would run to where its member says
    nothing, and what is found would depend on where the search begins. Nothing is drawn at random.

    Args:
        views: of each member, its logits (N, classes) of each margin.
        truth_N: class ids.
        start: weights to begin with; equal ones where None.
    """
    classes_N = torch.from_numpy(truth_N)
    logits = [torch.stack(list(v)) for v in views]
    alone = [_search([z], classes_N, [1.0], [1.0])[1] for z in logits]
    weights = start.weights if start else [1 / len(logits)] * len(logits)
    found, factor, nll = _search(logits, classes_N, alone, weights)
    return Votes(tuple(found), tuple(factor * t for t in alone), nll)


def _search(
    logits: Sequence[torch.Tensor], classes_N: torch.Tensor, temperatures: Sequence[float], weights: Sequence[float]
) -> tuple[list[float], float, float]:
    """Return the likeliest weights, the likeliest factor of all temperatures, and the negative log likelihood."""
    share = torch.tensor(list(weights)).clamp(min=_LEAST).log().requires_grad_()
    warmth = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.LBFGS([share, warmth], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        factor = (_WIDEST * warmth.tanh()).exp()
        of_truth = [_log_share(z, factor * t, classes_N) for z, t in zip(logits, temperatures, strict=True)]
        return -(torch.stack(of_truth) + share.log_softmax(0)[:, None]).logsumexp(0).mean()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        return share.softmax(0).tolist(), float((_WIDEST * warmth.tanh()).exp()), float(loss())


def _log_share(logits_VNC: torch.Tensor, temperature: torch.Tensor, classes_N: torch.Tensor) -> torch.Tensor:
    """Return the log of the true classes' mean probability (N,) over the margins."""
    tempered = logits_VNC / temperature
    of_truth_VN = tempered.gather(2, classes_N.expand(len(tempered), -1)[..., None])[..., 0] - tempered.logsumexp(2)
    return of_truth_VN.logsumexp(0) - float(np.log(len(tempered)))


def mixed(views: Sequence[Views], votes: Votes) -> Floats:
    """Return the probabilities (N, classes) that members give together, over their margins."""
    parts = [w * mean_probabilities(v, t) for v, w, t in zip(views, *_numbers(votes), strict=True)]
    return np.asarray(torch.stack(parts).sum(0).numpy(), dtype=np.float32)


def vote_left_out(views: Sequence[Views], crops: Crops, votes: Votes) -> Floats:
    """Return the probabilities (N, classes) of each tablet's signs by votes that were found on the other tablets.

    Args:
        views: as of `fit_votes`.
        crops: true classes and tablets; with fewer than two tablets nothing can be left out.
        votes: found on all of them, where each search begins.

    Raises:
        ValueError: fewer than two tablets.
    """
    tablets = np.unique(crops.tablets_N)
    if len(tablets) < 2:
        raise ValueError(f"dev has signs of {len(tablets)} tablet, expected two or more to leave one out")
    said_NC = mixed(views, votes)
    for tablet in tablets:
        out_N = crops.tablets_N == tablet
        kept = [[view[~out_N] for view in member] for member in views]
        found = fit_votes(kept, crops.classes_N[~out_N], votes)
        said_NC[out_N] = mixed([[view[out_N] for view in member] for member in views], found)
    return said_NC


def ensemble_card(
    members: Sequence[Member], votes: Votes, best: int, scores: dict[str, float], inventory: Any
) -> dict[str, Any]:
    """Return the model card of an ensemble; its config says how crops are cut, and is else that of the best member."""
    chosen = members[best].config
    data = chosen.data.model_copy(update={"crop_px": max(m.config.data.crop_px for m in members)})
    seconds = [m.seconds for m in members if m.seconds is not None]
    return model_card(
        chosen.model_copy(update={"name": "ensemble", "data": data}),
        scores,
        inventory,
        normalisation="RGB 0-1, then each member's own",
        licence=" ".join(dict.fromkeys(str(m.file.card.get("licence", "not stated")) for m in members)),
        members=[m.config.model_dump(mode="json") for m in members],
        weights=list(votes.weights),
        temperatures=list(votes.temperatures),
        best=members[best].name,
        provenance=[
            {
                "name": m.name,
                "commit": m.file.card.get("commit", "unknown"),
                "sha256": m.file.card["sha256"],
                "training_seconds": m.seconds,
            }
            for m in members
        ],
        **({"training_seconds": sum(seconds)} if len(seconds) == len(members) else {}),
    )


def _shown(
    members: Sequence[Member], own: Sequence[Views], crops: Sequence[Crops], largest: CropSize
) -> list[list[torch.Tensor]]:
    """Return the members' logits of the crops of the largest side, which an ensemble shows to all of them."""
    shown = []
    for member, views in zip(members, own, strict=True):
        alone = SignEnsemble([member.network], [member.size.crop_px], [1.0], [1.0])
        same = member.size == largest
        shown.append(list(views) if same else [classify_crops(alone, c.pixels_NSS3) for c in crops])
    return shown


def _numbers(votes: Votes) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return votes.weights, votes.temperatures


def _print(
    members: Sequence[Member], read: Sequence[Floats], rows: dict[str, Floats], votes: Votes, best: int, crops: Crops
) -> None:
    """Print weights, scores, and the paired gain over the best member."""
    tablets = len(np.unique(crops.tablets_N))
    title = f"classify on dev, {tablets} tablets, three margins (commit {commit()})"
    table = Table("", "backbone", "crop px", "weight", "temperature", "top1", "top5", "macro_f1", "nll", title=title)
    for member, said_NC, weight, temperature in zip(members, read, *_numbers(votes), strict=True):
        model, data = member.config.model, member.config.data
        cells = (model.backbone, str(data.crop_px), f"{weight:.3f}", f"{temperature:.3f}")
        table.add_row(member.name, *cells, *_scored(said_NC, crops))
    for name, said_NC in rows.items():
        table.add_row(name, "", "", "", "", *_scored(said_NC, crops))
    print_table(table)
    gained = Table(
        "", "gain", "95 % interval", "p", title=f"gain over {members[best].name}, the best on dev, by tablets"
    )
    for name, row in gains(read[best], rows, crops).items():
        gained.add_row(name, f"{row['gain']:+.2f}", f"{row['low']:.2f} to {row['high']:.2f}", f"{row['p']:.4f}")
    print_table(gained)


def _scored(said_NC: Floats, crops: Crops) -> list[str]:
    scores = score_classes(said_NC, crops.classes_N)
    of_truth_N = np.maximum(said_NC[np.arange(len(said_NC)), crops.classes_N], np.finfo(np.float32).tiny)
    return [*(f"{v:.2f}" for v in (scores.top1, scores.top5, scores.macro_f1)), f"{-np.log(of_truth_N).mean():.3f}"]
