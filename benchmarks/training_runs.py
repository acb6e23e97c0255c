"""Records which aten overloads and which of torch's functions one training step of each of some 150 public models calls, and
how often: the weights of ``conform coverage`` and of the causes in a report.

``python -m benchmarks.training_runs -o reports/weights.json`` writes the file again. The models are those of
``training_models.toml``, as far as the installed ``timm``, ``transformers`` and ``torchvision`` have them. Their weights are
random, so nothing is downloaded. Models of language have two layers instead of their number of layers: the overloads are the
same, the number of calls is lower.

A step is a forward and a backward pass in float32 on the CPU, without an optimizer. It is made twice, because a mode that
sees the functions would change which overloads they call.

A listed model that cannot be recorded is named in the file and on stderr, with the reason, and the command ends with exit code
1: the file is written, and its weights lack this model.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.overrides import TorchFunctionMode, resolve_name

from conformance.coverage.observer import observed_calls


class Package(msgspec.Struct, forbid_unknown_fields=True):
    """A package of models in ``training_models.toml``."""

    licence: str
    models: list[str]


MODELS = msgspec.toml.decode(
    Path(__file__).with_name("training_models.toml").read_bytes(), type=dict[str, Package]
)

#: The shapes of the images of models of torchvision that take no image of 224 by 224.
SHAPES: dict[str, tuple[int, ...]] = {
    "inception_v3": (2, 3, 299, 299),
    "segmentation.fcn_resnet50": (2, 3, 96, 96),
    "segmentation.deeplabv3_resnet50": (2, 3, 96, 96),
    "segmentation.lraspp_mobilenet_v3_large": (2, 3, 96, 96),
    "video.r3d_18": (1, 3, 4, 64, 64),
}

#: What makes a configuration small, as far as it has the attribute.
_SMALL: dict[str, Any] = {
    **dict.fromkeys(
        (
            *("num_hidden_layers", "num_layers", "n_layer", "n_layers", "num_decoder_layers"),
            *("encoder_layers", "decoder_layers"),
        ),
        2,
    ),
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "is_decoder": None,
    "hidden_size": 128,
    "d_model": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "attention_window": [16, 16],
    "attention_types": [[["global", "local"], 1]],
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
Step = Callable[[], torch.Tensor]

#: The calls of overloads, and of functions.
Calls = tuple[Counter[str], Counter[str]]


def timm_step(name: str) -> Step:
    """Returns the forward pass of a model of timm, with its loss."""
    model = import_module("timm").create_model(name).train()
    size = model.pretrained_cfg["input_size"]
    images = torch.randn(2, *size)
    labels = torch.randint(0, 1000, (2,))

    def step() -> torch.Tensor:
        out = model(images)
        outs = out if isinstance(out, (tuple, list)) else (out,)
        return sum(
            (torch.nn.functional.cross_entropy(each, labels) for each in outs), torch.zeros(())
        )

    return step


def torchvision_step(name: str) -> Step:
    """Returns the forward pass of a model of torchvision, with its loss."""
    space, _, rest = name.rpartition(".")
    module = import_module(f"torchvision.models{'.' + space if space else ''}")
    model = getattr(module, rest)(
        weights=None, **({"weights_backbone": None} if space == "segmentation" else {})
    ).train()
    images = torch.randn(SHAPES.get(name, (2, 3, 224, 224)))

    def step() -> torch.Tensor:
        out = model(images)
        out = out["out"] if isinstance(out, dict) else getattr(out, "logits", out)
        labels = torch.randint(0, out.shape[1], (out.shape[0], *out.shape[2:]))
        return torch.nn.functional.cross_entropy(out, labels)

    return step


def language_step(name: str) -> Step:
    """Returns the forward pass of a model of transformers, with its loss."""
    cls = getattr(import_module("transformers"), name)
    given = cls.config_class()
    small: dict[str, Any] = {
        key: value for key, value in _SMALL.items() if value is not None and hasattr(given, key)
    }
    if name == "ReformerModelWithLMHead":
        small |= {"is_decoder": True, "axial_pos_shape": (8, 8), "axial_pos_embds_dim": (64, 64)}
    try:
        config = cls.config_class(**small)
        model = cls(config)
    except Exception:
        few = {k: v for k, v in small.items() if "layers" in k or k.startswith("n_layer")}
        config = cls.config_class(**few)
        model = cls(config)
    model.train()
    ids = torch.randint(3, min(500, config.vocab_size), (2, 64))
    asked = {"labels": ids}
    if "QuestionAnswering" in name:
        asked = {"start_positions": torch.tensor([1, 2]), "end_positions": torch.tensor([3, 4])}
    elif "SequenceClassification" in name:
        asked = {"labels": torch.tensor([0, 1])}

    return lambda: model(input_ids=ids, **asked).loss


MAKERS: dict[str, Callable[[str], Step]] = {
    "transformers": language_step,
    "timm": timm_step,
    "torchvision": torchvision_step,
}


class Functions(TorchFunctionMode):
    """A mode that counts the functions and methods of torch by the names that torch's database of ops has for them:
    ``nn.functional.linear``, and ``add`` for ``torch.add``, ``torch.Tensor.add_`` and ``+``."""

    def __init__(self, found: Counter[str]) -> None:
        super().__init__()
        self._found = found

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = resolve_name(func) or ""
        if not name.endswith("__get__"):
            name = name.removeprefix("torch.").removeprefix("Tensor.")
            self._found[_DUNDER.sub(r"\1", name).rstrip("_")] += 1
        return func(*args, **(kwargs or {}))


#: ``__add__``, ``__radd__`` (by its name in the database) and ``__iadd__``
_DUNDER = re.compile(r"^__i?(\w+?)__$")


def calls_of(make: Callable[[str], Step], name: str) -> Calls:
    """Returns how often a training step of a model calls each overload and each function."""
    torch.manual_seed(0)
    step = make(name)
    functions: Counter[str] = Counter()
    with observed_calls() as overloads:
        step().backward()
    with Functions(functions):
        step().backward()
    return Counter(overloads), functions


def recorded(failed: dict[str, str]) -> Iterator[tuple[str, Calls]]:
    """Yields each model that can be recorded, with its calls. Adds each other listed model to ``failed``, with the reason."""
    for package, listed in MODELS.items():
        for name in listed.models:
            model, started = f"{package}:{name}", time.perf_counter()
            try:
                found = calls_of(MAKERS[package], name)
            except (
                Exception
            ) as error:  # such as a model that this version of the package no longer has
                failed[model] = f"{type(error).__name__}: {error}"[:300]
                print(f"left out: {model}: {failed[model]}", file=sys.stderr, flush=True)
                continue
            seconds = time.perf_counter() - started
            print(f"{model}: {len(found[0])} overloads, {seconds:.1f} s", flush=True)
            yield model, found
            gc.collect()


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the table. Returns 1 if a listed model could not be recorded."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, required=True)
    output = parser.parse_args(arguments).output
    warnings.simplefilter("ignore")
    torch.set_num_threads(2)
    failed: dict[str, str] = {}
    models: dict[str, Calls] = dict(recorded(failed))
    head = {
        "source": "one training step (forward and backward, float32, CPU) of each model, recorded by benchmarks/training_runs.py",
        "torch": str(torch.__version__).partition("+")[0],
        "packages": {
            package: {"version": version_of(package), "licence": listed.licence}
            for package, listed in MODELS.items()
        },
        "models": sorted(models),
        "left_out": sorted(failed),
    }
    text = json.dumps(head, indent=2)[:-2]
    for number, kind in enumerate(("overloads", "functions")):
        text += f',\n  "{kind}": {{\n{table_of([each[number] for each in models.values()])}\n  }}'
    output.write_text(f"{text}\n}}\n", encoding="utf-8")
    listed_models = len(models) + len(failed)
    print(
        f"{len(models)} of {listed_models} models recorded, {len(failed)} left out", file=sys.stderr
    )
    return 1 if failed else 0


def version_of(package: str) -> str:
    """Returns the version of an installed package; an empty text if it is not installed."""
    try:
        return metadata.version(package).partition("+")[0]
    except metadata.PackageNotFoundError:
        return ""


def table_of(models: list[Counter[str]]) -> str:
    """Returns a line of JSON for each name: the number of models that call it, and the number of calls."""
    calls: Counter[str] = sum(models, Counter())
    return ",\n".join(
        f"    {json.dumps(name)}: [{sum(name in each for each in models)}, {calls[name]}]"
        for name in sorted(calls)
    )


if __name__ == "__main__":
    sys.exit(main())
