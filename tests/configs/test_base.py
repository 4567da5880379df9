"""The config loader: every fault with file, line and suggestion; scalars as a person means them; nothing imported."""

import sys
import time
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field

from dubsar.configs.base import Block, ConfigError, dump, load


class Inner(Block):
    lr: float = 1e-3
    steps: int = 1
    fused: bool = False


class Outer(Block):
    data: Inner = Inner()
    name: str = "x"
    names: tuple[str, ...] = ()
    share: Annotated[float, Field(ge=0, le=1)] = 0.5
    maybe: Inner | None = None


@pytest.fixture
def put(tmp_path: Path):
    def write(text: str | bytes) -> Path:
        path = tmp_path / "c.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def faults(path: Path, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(path, Outer, overrides)
    return str(caught.value).splitlines()


def test_an_unknown_key_is_named_with_its_line_and_the_nearest_known_one(put) -> None:
    path = put("name: a\ndatas:\n  lr: 1.0\n")
    assert faults(path) == [f"{path}:2: unknown key 'datas' (did you mean 'data'?)"]
    path = put("data:\n  steps: 2\n  learning: 3\n")
    assert faults(path) == [f"{path}:3: unknown key 'data.learning'; known here: lr, steps, fused"]
    path = put("maybe:\n  step: 2\n")
    assert faults(path) == [f"{path}:2: unknown key 'maybe.step' (did you mean 'steps'?)"]


def test_all_faults_are_reported_at_once(put) -> None:
    path = put("nam: a\ndata:\n  lr: fast\n  steps: 1.5\nshare: 2\nname: b\nname: c\n")
    found = "\n".join(faults(path))
    for line, text in (
        (1, "'nam'"),
        (3, "'data.lr' is 'fast'"),
        (4, "'data.steps' is 1.5"),
        (5, "less than or equal to 1"),
        (7, "twice"),
    ):
        assert f"{path}:{line}: " in found
        assert text in found
    assert len(found.splitlines()) == 5


def test_a_key_that_stands_twice_is_refused_with_both_places(put) -> None:
    path = put("data:\n  lr: 1.0\n  lr: 2.0\n")
    assert faults(path) == [f"{path}:3: key 'lr' stands twice (first at {path}:2); keep one"]


@pytest.mark.parametrize(
    ("text", "value"), [("7e-4", 7e-4), ("7E-4", 7e-4), ("1.", 1.0), (".5", 0.5), ("-1.5e+3", -1500.0), ("2", 2.0)]
)
def test_floats_are_floats(put, text: str, value: float) -> None:
    assert load(put(f"data: {{lr: {text}}}"), Outer).data.lr == value


@pytest.mark.parametrize(
    "text",
    ["ON", "NO", "NA", "NAN", "Yes", "off", "012", "12:30", "0x10", "1_000", "True", "2001-01-01", ".inf", "=", "<<"],
)
def test_text_stays_text(put, text: str) -> None:
    config = load(put(f"name: {text}\nnames: [{text}, '7']\n"), Outer)
    assert config.name == text
    assert config.names == (text, "7")


@pytest.mark.parametrize(("text", "found"), [("1", "1"), ("yes", "'yes'"), ("0", "0"), ("'true'", "'true'")])
def test_only_true_and_false_are_booleans(put, text: str, found: str) -> None:
    path = put(f"data:\n  fused: {text}\n")
    (fault,) = faults(path)
    assert fault.startswith(f"{path}:2: 'data.fused' is {found}: ")
    assert load(put("data: {fused: true}"), Outer).data.fused is True


def test_a_number_is_no_text_and_text_is_no_number(put) -> None:
    path = put("name: 12\n")
    assert faults(path)[0].startswith(f"{path}:1: 'name' is 12: ")
    path = put("data: {steps: '3'}\n")
    assert faults(path)[0].startswith(f"{path}:1: 'data.steps' is '3': ")


@pytest.mark.parametrize(
    "text",
    [
        "_target_: os.system\n",
        "data:\n  class_path: subprocess.Popen\n",
        "data:\n  init_args: {lr: 1.0}\n",
    ],
)
def test_keys_that_would_construct_objects_elsewhere_are_unknown_here(put, text: str) -> None:
    assert "unknown key" in faults(put(text))[0]


@pytest.mark.parametrize(
    "tag",
    [
        "!!python/object/apply:os.system ['touch pwned']",
        "!!python/name:antigravity.fly",
        "!!python/module:antigravity",
        "!mine x",
    ],
)
def test_a_tag_constructs_and_imports_nothing(put, tag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = put(f"data: {{}}\nname: {tag}\n")
    (fault,) = faults(path)
    assert fault.startswith(f"{path}:2: ")
    assert not (tmp_path / "pwned").exists()
    assert "antigravity" not in sys.modules
    (fault,) = faults(put("name: a\n"), f"name={tag}")
    assert fault.startswith("command line: ")


def test_files_that_are_no_config(put, tmp_path: Path) -> None:
    assert faults(tmp_path / "none.yaml") == [
        f"{tmp_path / 'none.yaml'}: no such config file; `dubsar config --help` lists the ones that ship"
    ]
    assert "cannot be read as UTF-8 text" in faults(put("name: ḫ\n".encode("utf-16")))[0]
    assert faults(put("- a\n- b\n"))[0].endswith(":1: found list, expected blocks such as 'data:' and 'model:'")
    assert ":2: not valid YAML" in faults(put("data: [1\nname: a\n"))[0]
    assert "cannot be read" in faults(tmp_path)[0]
    assert load(put(""), Outer) == Outer()
    assert load(put("# only a comment\n"), Outer) == Outer()
    assert load(put("\ufeffname: a\n"), Outer).name == "a"


def test_more_than_one_document_is_refused(put) -> None:
    assert "not valid YAML" in faults(put("name: a\n---\nname: b\n"))[0]


def test_an_endless_alias_and_a_merge_key_are_refused(put) -> None:
    assert ":3: not valid YAML: alias *m: write it out" in faults(put("maybe: &m {lr: 1.0}\ndata:\n  <<: *m\n"))[0]
    assert ":2: not valid YAML: alias *a: write it out" in faults(put("data: &a\n  lr: *a\n"))[0]


@pytest.mark.parametrize("text", ["[" * 3000, "{a: " * 3000, "- " * 3000, "? " * 3000, "[" * 200 + "]" * 200])
def test_what_is_nested_too_deeply_is_refused_quickly(put, text: str) -> None:
    start = time.process_time()
    path = put(text)
    assert faults(path) == [f"{path}:1: not valid YAML: nested more than 50 deep; a config has a few levels"]
    path = put("name: a\n")
    assert faults(path, f"names={text}") == [f"command line: {f'names={text}'!r} has a value that is not YAML"]
    assert faults(path, "a." * 3000 + "a=1")[0].endswith("is nested more than 50 deep; a config has a few levels")
    assert time.process_time() - start < 1
    assert load(put("names: [a, b]\n"), Outer, ("data={lr: 1.0}",)).names == ("a", "b")


def test_not_a_number_is_refused(put) -> None:
    path = put("data: {lr: .nan}\n")
    assert faults(path)[0].startswith(f"{path}:1: 'data.lr' is '.nan': ")
    assert "1e999" in faults(put("data: {lr: 1e999}\n"))[0]


def test_overrides_are_read_as_yaml_and_win(put) -> None:
    path = put("name: a\ndata: {lr: 1.0, steps: 5}\n")
    config = load(path, Outer, ("data.lr=3e-4", "name=NO", "names=[a, b=c]", "maybe.steps=7"))
    assert (config.data, config.name, config.names) == (Inner(lr=3e-4, steps=5), "NO", ("a", "b=c"))
    assert config.maybe == Inner(steps=7)
    assert load(path, Outer, ("data.steps=1", "data.steps=2")).data.steps == 2
    assert load(path, Outer, ("name=",)).name == load(path, Outer, ('name=""',)).name == ""
    assert load(path, Outer, ("maybe.steps=7", "maybe=null")).maybe is None


def test_bad_overrides_are_all_named(put) -> None:
    path = put("name: a\n")
    found = faults(path, "data.lr", "=3", "data.l=1", "name=[", "share=7", "name.deep=1", "data..lr=1")
    assert "command line: 'data.lr' is not a setting; expected key=value, such as optim.lr=3e-4" in found
    assert "command line: '=3' is not a setting; expected key=value, such as optim.lr=3e-4" in found
    assert "command line: unknown key 'data.l' (did you mean 'lr'?)" in found
    assert "command line: 'name=[' has a value that is not YAML" in found
    assert any(f.startswith("command line: 'share' is 7") for f in found)
    assert any(f.startswith("command line: 'name' is {'deep': 1}") for f in found)
    assert faults(path, "data={lr: 1.0, lr: 2.0}")[0].startswith("command line: key 'lr' stands twice")
    assert "command line: 'data..lr=1' is not a setting; expected key=value, such as optim.lr=3e-4" in found


def test_dump_is_read_back_to_an_equal_config(put) -> None:
    config = Outer(
        data=Inner(lr=7e-5, fused=True), name="NO", names=("ḫ", "012", "true", "1e3", ""), maybe=Inner(steps=9)
    )
    assert load(put(dump(config)), Outer) == config
    assert "ḫ" in dump(config)


def test_blocks_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Inner().lr = 2.0
