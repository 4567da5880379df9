"""The shipped configs: each loads, each names its stage, and the file says all that runs."""

from pathlib import Path

import pytest
import yaml

from dubsar.configs.base import ConfigError, dump, load
from dubsar.configs.blocks import Efficiency
from dubsar.configs.schema import STAGES, ReadConfig, shipped_config

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
STAGE_FILES = sorted([*(CONFIGS / f"{s}.yaml" for s in STAGES), *(CONFIGS / "debug").glob("*.yaml")])


@pytest.mark.parametrize("path", STAGE_FILES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_every_stage_config_loads_and_is_what_runs(path: Path, tmp_path: Path) -> None:
    schema = STAGES[path.stem]
    config = load(path, schema)
    assert config.stage == path.stem
    (tmp_path / "again.yaml").write_text(dump(config), encoding="utf-8")
    assert load(tmp_path / "again.yaml", schema) == config
    written = yaml.safe_load(path.read_text(encoding="utf-8"))
    resolved = yaml.safe_load(dump(config))
    for block, keys in written.items():
        for key, value in keys.items() if isinstance(keys, dict) else ():
            found = resolved[block][key]
            wanted = float(value) if isinstance(found, float) else value
            # of a block within a block only some settings are written
            assert found == (found | wanted if isinstance(found, dict) else wanted), f"{block}.{key}"


def test_every_yaml_that_ships_belongs_to_a_schema() -> None:
    assert {p.stem for p in CONFIGS.glob("*.yaml")} == {*STAGES, "read", "classify_hittite"}
    assert {p.stem for p in (CONFIGS / "debug").glob("*.yaml")} == set(STAGES)


def test_shipped_configs_are_found_from_anywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(shipped_config("read"), ReadConfig).stage == "read"
    assert shipped_config("detect").is_file()


def test_another_stages_config_is_refused() -> None:
    path = CONFIGS / "classify.yaml"
    with pytest.raises(ConfigError) as caught:
        load(path, STAGES["transliterate"])
    line = 1 + path.read_text(encoding="utf-8").splitlines().index("stage: classify")
    assert f"{path}:{line}: 'stage' is 'classify'" in str(caught.value)
    assert "unknown key 'model.backbone'" in str(caught.value)


def test_all_levers_off_is_the_default() -> None:
    assert Efficiency().model_dump() == {
        "precision": "fp32",
        "compile": "off",
        "compile_mode": "default",
        "attention": "eager",
        "fused_optimizer": False,
        "packing": "off",
        "ema": None,
        "swa": None,
        "dora": None,
        "checkpointing": "off",
        "cuda_graphs": False,
        "channels_last": False,
        "liger": False,
        "strict": False,
    }


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.max_steps=0", "'trainer.max_steps' is 0: Input should be greater than or equal to 1"),
        ("optim.lr=-1", "'optim.lr' is -1: Input should be greater than 0"),
        ("optim.schedule=cosin", "'optim.schedule' is 'cosin': Input should be 'cosine', 'linear' or 'constant'"),
        ("efficiency.ema.decay=1", "'efficiency.ema.decay' is 1: Input should be less than 1"),
        ("optim.betas=[0.9]", "'optim.betas.1' is missing; give it a value"),
        ("efficency.precision=bf16", "unknown key 'efficency' (did you mean 'efficiency'?)"),
        ("model.backbone=null", "'model.backbone' is None: Input should be a valid string"),
        ("name=../../etc", "'name' is '../../etc': String should match pattern"),
        ("name=null", "'name' is None"),
    ],
)
def test_values_out_of_range_are_explained(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(CONFIGS / "classify.yaml", STAGES["classify"], (override,))
    assert str(caught.value).startswith(f"command line: {message}")


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:1"])
def test_reading_takes_a_device(device: str) -> None:
    assert load(shipped_config("read"), ReadConfig).device == "auto"
    assert load(shipped_config("read"), ReadConfig, (f"device={device}",)).device == device


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "CPU", "cuda:1 "])
def test_another_device_is_refused(device: str) -> None:
    with pytest.raises(ConfigError, match=r"'device' is '.*': String should match pattern"):
        load(shipped_config("read"), ReadConfig, (f"device='{device}'",))


def test_a_missing_block_is_named(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("stage: classify\nmodel: {}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "c.yaml", STAGES["classify"])
    assert str(caught.value).splitlines() == [
        f"{tmp_path / 'c.yaml'}:2: 'model.backbone' is missing; give it a value",
        f"{tmp_path / 'c.yaml'}:1: 'optim' is missing; give it a value",
        f"{tmp_path / 'c.yaml'}:1: 'trainer' is missing; give it a value",
    ]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("data.source=coco",), "source is coco and root is empty; give the data set's folder as data.root"),
        (("data.source=folder",), "'data.source' is 'folder': Input should be 'tablet-signs', 'folders' or 'coco'"),
        (("data.catalogue=HZL",), "catalogue and tablet_pattern say how to read a data set of labels, but source is"),
        (
            ("data.tablet_pattern=K",),
            "catalogue and tablet_pattern say how to read a data set of labels, but source is",
        ),
        (
            ("data.source=folders", "data.root=x", "data.tablet_pattern='(K'"),
            "tablet_pattern '(K' is no regular expression (missing ), unterminated subpattern at position 0); expected",
        ),
    ],
)
def test_a_data_set_of_labels_is_named_in_full(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(CONFIGS / "classify.yaml", STAGES["classify"], overrides)
    assert message in str(caught.value)


def test_reading_without_a_file_reads_as_the_file_that_ships() -> None:
    assert ReadConfig() == load(shipped_config("read"), ReadConfig)


def test_no_sign_is_unread_before_it_is_doubtful() -> None:
    with pytest.raises(ConfigError, match=r"unread_below is 0\.6, expected at most doubtful_below"):
        load(shipped_config("read"), ReadConfig, ("unread_below=0.6",))
