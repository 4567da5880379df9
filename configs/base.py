"""Load a stage's YAML: all faults at once, each with file, line and a suggestion.

YAML 1.1 reads ``NO`` as false, ``012`` as ten, ``12:30`` as 750, and ``7e-4`` as text. Here only ``true``/``false`` are
booleans, only plain decimal numbers are numbers, a key that stands twice is refused, and no tag can construct an
object.
"""

import difflib
import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

Path_ = tuple[str | int, ...]
MAX_DEPTH = 50
_TOO_DEEP = f"nested more than {MAX_DEPTH} deep; a config has a few levels"


class ConfigError(ValueError):
    """A config that cannot be used; the message lists every fault with its file and line."""


class Block(BaseModel):
    """Base of all config blocks: frozen, strict, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


BlockT = TypeVar("BlockT", bound=Block)


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2 core scalars, a bounded depth, and no aliases: ten lines can stand for gigabytes."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, f"alias *{event.anchor}: write it out", event.start_mark)
        if self.depth >= MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, _TOO_DEEP, mark)
        self.depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes the texts which `_Loader` would take for something else."""


_FLOAT = r"[-+]?(?:(?:0|[1-9][0-9]*)\.[0-9]*|\.[0-9]+|(?:0|[1-9][0-9]*)(?=[eE]))(?:[eE][-+]?[0-9]+)?\Z"
for _class in (_Loader, _Dumper):
    _class.yaml_implicit_resolvers = {}  # replaced, not added to
    for _tag, _pattern, _first in (
        ("bool", r"(?:true|false)\Z", "tf"),
        ("null", r"(?:null|~|)\Z", ["n", "~", ""]),
        ("int", r"[-+]?(?:0|[1-9][0-9]*)\Z", "-+0123456789"),
        ("float", _FLOAT, "-+.0123456789"),
    ):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), list(_first))


@dataclass
class _Source:
    """Plain data of a YAML file, and the place of each key."""

    data: dict[str, Any]
    places: dict[Path_, str]
    faults: list[str] = field(default_factory=list)

    def place(self, path: Path_) -> str:
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, self.places[()])


def load(path: Path, schema: type[BlockT], overrides: tuple[str, ...] = ()) -> BlockT:
    """Read and check a config.

    Args:
        path: the YAML file.
        schema: the stage's config class.
        overrides: ``block.key=value`` from the command line; values are read as YAML.

    Returns:
        The frozen config: the file with its overrides is exactly what runs.

    Raises:
        ConfigError: every fault found, one per line.
    """
    source = _read(path)
    for override in overrides:
        _apply(source, override)
    try:
        config = schema.model_validate_json(json.dumps(source.data))
    except ValidationError as error:
        source.faults += [_explain(e, schema, source) for e in error.errors()]
        config = None
    if source.faults or config is None:
        raise ConfigError("\n".join(source.faults))
    return config


def dump(config: Block) -> str:
    """Return the resolved config as YAML that `load` reads back to an equal config."""
    text: str = yaml.dump(json.loads(config.model_dump_json()), Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text


def place_of(path: Path, *keys: str | int) -> str:
    """Return where a key stands in a config, as file:line; of its parent where it is not written there.

    Raises:
        ConfigError: the file cannot be read.
    """
    return _read(path).place(keys)


def _read(path: Path) -> _Source:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such config file; `dubsar config --help` lists the ones that ship") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as UTF-8 text ({error})") from error
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        source = _Source({}, {(): f"{path}:1"})
        if root is None:
            return source
        data = _convert(loader, root, (), source, path)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        raise ConfigError(f"{path}:{line}: not valid YAML: {getattr(error, 'problem', error)}") from error
    finally:
        loader.dispose()
    if not isinstance(data, dict):
        raise ConfigError(f"{path}:1: found {type(data).__name__}, expected blocks such as 'data:' and 'model:'")
    source.data = data
    return source


def _convert(loader: _Loader, node: yaml.Node, at: Path_, source: _Source, file: Path) -> Any:
    source.places.setdefault(at, f"{file}:{node.start_mark.line + 1}")
    if isinstance(node, yaml.MappingNode):
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            place = f"{file}:{key_node.start_mark.line + 1}"
            if key in result:
                first = source.place((*at, key))
                source.faults.append(f"{place}: key {key!r} stands twice (first at {first}); keep one")
            source.places[(*at, key)] = place
            result[key] = _convert(loader, value_node, (*at, key), source, file)
        return result
    if isinstance(node, yaml.SequenceNode):
        return [_convert(loader, child, (*at, i), source, file) for i, child in enumerate(node.value)]
    value = loader.construct_object(node)
    if isinstance(value, float) and not math.isfinite(value):
        source.faults.append(f"{source.place(at)}: {node.value} is beyond what a float can hold")
        return None
    return value


def _apply(source: _Source, override: str) -> None:
    key, separator, value = override.partition("=")
    keys = key.split(".")
    if not separator or not all(keys):
        source.faults.append(f"command line: {override!r} is not a setting; expected key=value, such as optim.lr=3e-4")
        return
    if len(keys) > MAX_DEPTH:
        source.faults.append(f"command line: {override!r} is {_TOO_DEEP}")
        return
    loader = _Loader(value)
    try:
        node = loader.get_single_node()
        given = _Source({}, {})
        # a shell takes the quotes off `model.weights=""`
        parsed = "" if node is None else _convert(loader, node, (), given, Path("command line"))
    except yaml.YAMLError:
        source.faults.append(f"command line: {override!r} has a value that is not YAML")
        return
    finally:
        loader.dispose()
    source.faults += [f"command line{fault[fault.index(': ') :]}" for fault in given.faults]
    source.places = {at: place for at, place in source.places.items() if at[: len(keys)] != tuple(keys)}
    target = source.data
    for depth, block in enumerate(keys[:-1], start=1):
        child = target.get(block)
        if not isinstance(child, dict):
            source.places[tuple(keys[:depth])] = "command line"
        target[block] = target = dict(child) if isinstance(child, dict) else {}
    target[keys[-1]] = parsed
    source.places[tuple(keys)] = "command line"


def _explain(error: Any, schema: type[Block], source: _Source) -> str:
    at: Path_ = tuple(error["loc"])
    place, name = source.place(at), ".".join(map(str, at))
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(at[-1]), _fields(schema, at[:-1]), n=1, cutoff=0.5)
        hint = f" (did you mean {near[0]!r}?)" if near else f"; known here: {', '.join(_fields(schema, at[:-1]))}"
        return f"{place}: unknown key {name!r}{hint}"
    if error["type"] == "missing":
        return f"{place}: {name!r} is missing; give it a value"
    return f"{place}: {name!r} is {error['input']!r}: {error['msg'].removeprefix('Value error, ')}"


def _fields(schema: type[Block], at: Path_) -> list[str]:
    """Return the keys that the block at path ``at`` knows."""
    model: type[BaseModel] = schema
    for key in at:
        info = model.model_fields.get(str(key))
        if info is None:
            return []
        types = (info.annotation, *get_args(info.annotation))
        blocks = [t for t in types if isinstance(t, type) and issubclass(t, BaseModel)]
        if not blocks:
            return []
        model = blocks[0]
    return list(model.model_fields)
