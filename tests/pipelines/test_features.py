"""Measures of frozen features against the formulas in float64, and the pictures that are made of them."""

import numpy as np
import numpy.typing as npt
import pytest
import timm
import torch
from matplotlib import colormaps
from scipy.optimize import minimize
from timm.layers import apply_rot_embed_cat

from dubsar.pipelines import features
from dubsar.pipelines.feature_pictures import (
    Tile,
    attention_picture,
    pca_picture,
    printable,
    sheet,
    similarity_picture,
)
from dubsar.pipelines.features import drift, embed, hog, knn, linear_probe, unit

RNG = np.random.default_rng(7)


def blobs(
    count: int, classes: int, spread: float, width: int = 12
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Features of classes that lie around centres of their own."""
    centres = np.random.default_rng(1).normal(size=(classes, width))
    labels = RNG.integers(0, classes, count)
    return (centres[labels] + spread * RNG.normal(size=(count, width))).astype(np.float32), labels


def test_embed_keeps_the_order_in_batches_of_any_size() -> None:
    crops = RNG.integers(0, 256, (7, 4, 4, 3), dtype=np.uint8)
    wanted = crops.reshape(7, 16, 3).mean(1) / 255
    for batch_size in (1, 3, 7, 50):
        found = embed(lambda pixels_BCHW: pixels_BCHW.mean((2, 3)), crops, batch_size)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_embed_gives_float32_without_gradients_and_nothing_for_nothing() -> None:
    layer = torch.nn.Conv2d(3, 5, 4).bfloat16()
    found = embed(lambda pixels: layer(pixels.bfloat16()).flatten(1), np.zeros((2, 4, 4, 3), np.uint8))
    assert (found.dtype, found.shape) == (np.float32, (2, 5))
    assert embed(lambda pixels: pixels, np.zeros((0, 4, 4, 3), np.uint8)).shape == (0, 0)


def voted(
    train: npt.ArrayLike, labels: npt.ArrayLike, test: npt.ArrayLike, classes: int, k: int, t: float
) -> list[list[int]]:
    """The published vote, written out in float64."""
    x, y = np.asarray(train, np.float64), np.asarray(test, np.float64)
    x, y = x / np.linalg.norm(x, axis=1)[:, None], y / np.linalg.norm(y, axis=1)[:, None]
    rows = []
    for cosines in y @ x.T:
        votes = np.zeros(classes)
        for i in np.argsort(-cosines)[:k]:
            votes[np.asarray(labels)[i]] += np.exp(cosines[i] / t)
        rows.append([int(c) if votes[c] > 0 else -1 for c in np.argsort(-votes, kind="stable")[:5]])
    return rows


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.07), (20, 0.07), (20, 1.0), (500, 0.07), (20, 0.004)])
def test_knn_is_the_published_vote(k: int, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "_CHUNK", 17)  # of 40: the last chunk is a short one
    (train, labels), (test, _) = blobs(200, 9, 1.5), blobs(40, 9, 1.5)
    found = knn(train, labels, test, classes=9, k=k, temperature=temperature)
    assert found.shape == (40, 5)
    wanted = np.array(voted(train, labels, test, 9, k, temperature))
    # classes without a vote stand behind all others in either
    np.testing.assert_array_equal(np.sort(found == -1, 1), found == -1)
    np.testing.assert_array_equal(found, wanted)


def test_knn_names_no_class_that_has_no_vote() -> None:
    found = knn(np.eye(3), [4, 4, 2], np.eye(3)[:1], classes=6, k=3)
    assert found.tolist() == [[4, 2, -1, -1, -1]]
    assert knn(np.eye(2), [0, 1], np.zeros((0, 2)), classes=2).shape == (0, 2)


@pytest.mark.parametrize("measure", [knn, linear_probe])
@pytest.mark.parametrize(
    ("train", "labels", "test", "message"),
    [
        (np.zeros((0, 3)), [], np.eye(3), "0 train features with 0 labels; expected one each, and at least one"),
        (np.eye(3), [0, 1], np.eye(3), "3 train features with 2 labels"),
        (np.eye(3), [0, 1, 4], np.eye(3), "labels go from 0 to 4, expected 0 to 3"),
        (np.eye(3), [0, -1, 1], np.eye(3), "labels go from -1 to 1"),
        (np.eye(3), [0, 1, 2], np.eye(2), "train has 3 features, test has 2"),
        (np.full((1, 3), np.nan), [0], np.eye(3), "train: not all numbers are finite"),
        (np.eye(3), [0, 1, 2], np.full((1, 3), np.inf), "test: not all numbers are finite"),
        (np.zeros(3), [0], np.eye(3), r"train: shape \(3,\), expected \(rows, features\)"),
    ],
)
def test_measures_refuse_what_they_cannot_judge(
    measure: object, train: npt.ArrayLike, labels: npt.ArrayLike, test: npt.ArrayLike, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        measure(train, labels, test, classes=4)  # type: ignore[operator]


def test_the_probe_is_at_the_minimum_that_scipy_finds() -> None:
    (train, labels), (test, _) = blobs(120, 4, 2.0, width=5), blobs(60, 4, 2.0, width=5)
    x = train.astype(np.float64)
    mean, deviation = x.mean(0), x.std(0)
    x, y = (x - mean) / deviation, (test - mean) / deviation

    def loss(flat: npt.NDArray[np.float64]) -> float:
        weights = flat.reshape(6, 4)
        logits = x @ weights[:-1] + weights[-1]
        high = logits.max(1, keepdims=True)
        log_sum = high[:, 0] + np.log(np.exp(logits - high).sum(1))
        return float((log_sum - logits[np.arange(120), labels]).mean() + 0.05 * np.square(weights[:-1]).sum())

    weights = minimize(loss, np.zeros(24), options={"gtol": 1e-7}).x.reshape(6, 4)
    wanted = np.argsort(-(y @ weights[:-1] + weights[-1]), axis=1)
    found = linear_probe(train, labels, test, classes=4, penalties=(0.1,))
    assert (found == wanted).mean() > 0.99


def test_the_probe_chooses_the_penalty_that_holds_on_other_tablets() -> None:
    # many features of noise and few rows: only a strong penalty is better than chance by much
    signal, labels = blobs(90, 3, 0.7, width=2)
    test, wanted = blobs(300, 3, 0.7, width=2)
    train = np.hstack([signal, RNG.normal(size=(90, 200))])
    test = np.hstack([test, RNG.normal(size=(300, 200))])
    tablets = [f"P{i % 9}" for i in range(90)]
    right = {
        penalties: (
            linear_probe(train, labels, test, classes=3, tablets=tablets, penalties=penalties)[:, 0] == wanted
        ).mean()
        for penalties in ((1.0,), (1e-6,), (1e-6, 1.0))
    }
    assert right[1e-6, 1.0] == max(right[1.0,], right[1e-6,])
    assert right[1.0,] != right[1e-6,]


def test_no_tablet_is_on_both_sides() -> None:
    tablets = [f"P{i % 11}" for i in range(100)]
    held = features._held_out(100, tablets, 0)
    inside, outside = ({t for t, h in zip(tablets, held, strict=True) if h is np.bool_(side)} for side in (True, False))
    assert (len(inside), len(outside), inside & outside) == (2, 9, set())
    assert features._held_out(100, None, 0).sum() == 20
    with pytest.raises(ValueError, match="3 tablets for 2 train features"):
        features._held_out(2, ["a", "b", "c"], 0)


def test_the_probe_of_one_tablet_takes_the_strongest_penalty() -> None:
    train, labels = blobs(30, 3, 0.1)
    assert (linear_probe(train, labels, train, classes=3, tablets=["P1"] * 30)[:, 0] == labels).all()


def test_drift_of_the_same_turned_and_other_features() -> None:
    before = RNG.normal(size=(300, 6)) + 1
    assert drift(before, before) == pytest.approx({"cosine": 1, "cka": 1})
    turn = np.linalg.qr(RNG.normal(size=(6, 6)))[0]
    turned = drift(before, 3 * before @ turn)
    assert turned["cka"] == pytest.approx(1)
    assert turned["cosine"] < 0.9
    other = drift(before, RNG.normal(size=(300, 6)))
    assert other["cka"] < 0.1
    assert abs(other["cosine"]) < 0.1


def test_drift_is_the_published_alignment() -> None:
    before, after = RNG.normal(size=(20, 5)), RNG.normal(size=(20, 5))
    after[:, 0] += before[:, 0]
    centre = np.eye(20) - 1 / 20
    k, m = (centre @ x @ x.T @ centre for x in (before, after))  # the same by Gram matrices (HSIC), as the paper has it
    wanted = np.trace(k @ m) / np.sqrt(np.trace(k @ k) * np.trace(m @ m))
    assert drift(before, after)["cka"] == pytest.approx(wanted, rel=1e-5)


def test_collapsed_features_have_no_alignment() -> None:
    assert drift(RNG.normal(size=(9, 3)), np.ones((9, 3)))["cka"] == 0
    assert drift(np.zeros((9, 3)), np.zeros((9, 3))) == {"cosine": 0, "cka": 0}


@pytest.mark.parametrize(("before", "after"), [((2, 3), (2, 4)), ((2, 3), (3, 3)), ((0, 3), (0, 3))])
def test_drift_wants_the_same_crops(before: tuple[int, int], after: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="expected the same crops in both, at least one"):
        drift(np.ones(before), np.ones(after))


def test_principal_components_tell_regions_apart() -> None:
    region = np.repeat([0, 1, 2, 3], 6)
    patches = np.random.default_rng(0).normal(size=(4, 16))[region]
    picture = pca_picture(patches, (4, 6))
    assert (picture.shape, picture.dtype) == ((4, 6, 3), np.uint8)
    assert [len(np.unique(row, axis=0)) for row in picture] == [1] * 4
    colours = picture[:, 0].astype(int)
    assert min(np.abs(colours[i] - colours[j]).max() for i in range(4) for j in range(i)) > 100
    assert np.array_equal(pca_picture(patches * 2, (4, 6)), picture)


def test_patches_that_are_alike_are_grey() -> None:
    assert np.unique(pca_picture(np.full((6, 4), 3.7), (2, 3))).tolist() == [128]
    assert pca_picture(np.ones((1, 1)), (1, 1)).shape == (1, 1, 3)


def test_what_is_like_the_anchor_is_bright() -> None:
    patches = np.array([[1, 0], [0, 1], [-1, 0], [1, 1], [2, 0], [0, 3]])
    light = similarity_picture(patches, (2, 3), (0, 0)).astype(int).sum(2)
    assert light[0, 0] == light[1, 1] == light.max()
    assert light[0, 1] == light[0, 2] == light[1, 2] == light.min()
    assert light.min() < light[1, 0] < light.max()


@pytest.mark.parametrize("anchor", [(2, 0), (0, 3), (-1, 0)])
def test_pictures_refuse_another_grid(anchor: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="outside the grid of 2 x 3 patches"):
        similarity_picture(np.ones((6, 2)), (2, 3), anchor)
    with pytest.raises(ValueError, match="5 patches, expected 2 x 3"):
        pca_picture(np.ones((5, 2)), (2, 3))


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vit_small_patch16_dinov3"])
def test_attention_is_that_of_the_class_token(name: str) -> None:
    torch.manual_seed(0)
    given = {"dynamic_img_size": True} if "224" in name else {}
    net = timm.create_model(name, depth=2, embed_dim=24, num_heads=3, num_classes=0, **given).eval()
    torch.nn.init.normal_(net.blocks[-1].attn.qkv.weight, std=0.15)  # fresh weights attend to all patches alike
    pixels, attention, seen = torch.randn(1, 3, 32, 48), net.blocks[-1].attn, {}
    hooks = [
        attention.register_forward_pre_hook(lambda _m, _i, options: seen.update(options), with_kwargs=True),
        attention.q_norm.register_forward_hook(lambda _m, _i, q: seen.update(q=q)),
        attention.k_norm.register_forward_hook(lambda _m, _i, k: seen.update(k=k)),
    ]
    with torch.no_grad():
        before, fused = net(pixels), attention.fused_attn
    for hook in hooks:
        hook.remove()
    q, k, first = seen["q"], seen["k"], net.num_prefix_tokens
    if seen.get("rope") is not None:
        turned = {"half": getattr(attention, "rotate_half", False)}
        q, k = (
            torch.cat([x[:, :, :first], apply_rot_embed_cat(x[:, :, first:], seen["rope"], **turned)], 2)
            for x in (q, k)
        )
    weights = (q @ k.mT * attention.scale).softmax(-1)[0, :, 0, first:].mean(0)

    picture = attention_picture(net, pixels, (2, 3))
    wanted = colormaps["viridis"]((weights / weights.max()).reshape(2, 3).numpy())[..., :3] * 255
    np.testing.assert_allclose(picture, wanted, atol=1)
    assert len(np.unique(picture.reshape(6, 3), axis=0)) > 3
    with torch.no_grad():
        assert torch.equal(net(pixels), before)  # nothing is left behind
    assert attention.fused_attn == fused
    with pytest.raises(ValueError, match="the network sees 6 patches, expected 3 x 3"):
        attention_picture(net, pixels, (3, 3))


def test_only_a_transformer_has_attention() -> None:
    net = timm.create_model("resnet10t", num_classes=0)
    with pytest.raises(ValueError, match="ResNet: no vision transformer of timm"):
        attention_picture(net, torch.zeros(1, 3, 32, 32), (1, 1))


def test_a_sheet_lays_tiles_out_in_rows() -> None:
    wide = np.full((10, 40, 3), 200, np.uint8)
    small, large = (sheet([Tile(wide, ("1", "BA"))] * n, columns=4) for n in (3, 5))
    assert small.shape[1] < large.shape[1]
    assert large.shape[0] == pytest.approx(2 * small.shape[0], abs=20)
    assert np.array_equal(
        sheet([Tile(None, ("x",))])[100, 100], sheet([Tile(None, ("",))])[5, 100]
    )  # paper, no picture


def test_captions_hold_any_file_name() -> None:
    evil = "a\nb\x1b[31m\u202e$x^2$<b>" + "ḫ" * 500 + "𒁀\udcff.jpg"
    plain = sheet([Tile(None, ("",))])
    shown = sheet([Tile(None, (evil,))])
    assert shown.shape == plain.shape
    assert not np.array_equal(shown, plain)
    assert printable("a\nb\x1b[1m\u202e\udcff ŠE") == "a�b�[1m�� ŠE"


def test_rows_have_length_1_and_zeros_stay() -> None:
    found = unit([[3, 4], [0, 0]])
    assert found.tolist() == [[pytest.approx(0.6), pytest.approx(0.8)], [0, 0]]


def test_gradients_tell_direction_from_light() -> None:
    stripes = np.indices((64, 64))[0] // 8 % 2 * np.uint8(120)
    crops = np.repeat(np.stack([stripes, stripes.T, stripes // 2 + 60])[..., None], 3, axis=3).astype(np.uint8)
    same, turned, dimmed = unit(hog(crops))
    assert same.shape == (5 * 5 * 4 * 9,)
    assert same @ dimmed > 0.98
    assert same @ turned < 0.5
    assert hog(crops[:0]).shape == (0, 0)
