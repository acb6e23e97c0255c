"""Records which aten overloads and which of torch's functions one training step of each of some 150 public models calls, and
how often: the weights of ``conform coverage`` and of the causes in a report.

``python -m benchmarks.training_runs -o conformance/coverage/weights.json`` writes the file again. The models are those of the
training benchmarks of PyTorch (benchmarks/dynamo: huggingface, timm and torchbench), as far as ``timm``, ``transformers`` and
``torchvision`` have them, and models that have become common since. Their weights are random, so nothing is downloaded. Models
of language have two layers instead of their number of layers: the overloads are the same, the number of calls is lower.

A step is a forward and a backward pass in float32 on the CPU, without an optimizer.
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
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, resolve_name

from conformance.coverage.measuring import Watching
from opinfo.torch_private import FakeTensorMode

#: Models of timm: the names of the benchmarks, in the spelling of timm 1.0.
TIMM = """beit_base_patch16_224 botnet26t_256 cait_xxs24_224 coat_lite_mini convmixer_768_32 crossvit_9_240 cspdarknet53
deit_base_distilled_patch16_224 densenet121 dla102 dm_nfnet_f0 dpn107 eca_botnext26ts_256 eca_halonext26ts ecaresnet101d
ese_vovnet19b_dw fbnetc_100 fbnetv3_b gernet_l ghostnet_100 seresnext50_32x4d xception65 gmlp_s16_224 hardcorenas_a hrnet_w18
nest_base lcnet_050 legacy_seresnet50 levit_128 mixer_b16_224 mixnet_l mnasnet_100 mobilenetv2_100 mobilenetv3_large_100
mobilevit_s nasnetalarge nfnet_l0 pit_b_224 pnasnet5large poolformer_s12 regnety_002 repvgg_a2 res2net101_26w_4s
res2net50_14w_8s res2next50 resmlp_12_224 resnest50d resnet18 rexnet_100 sebotnet33ts_256 selecsls42b spnasnet_100
swin_base_patch4_window7_224 resnext101_32x8d tf_efficientnet_b0 tf_mixnet_l tinynet_a tnt_s_patch16_224 twins_pcpvt_base
visformer_small vit_base_patch16_224 volo_d1_224 convnext_tiny maxvit_tiny_tf_224 edgenext_small efficientformer_l1
swinv2_tiny_window8_256 eva02_tiny_patch14_224 hiera_tiny_224 fastvit_t8""".split()

#: Models of torchvision, with the inputs' shape.
TORCHVISION: dict[str, tuple[int, ...]] = {
    **{
        name: (2, 3, 224, 224)
        for name in """alexnet vgg16 squeezenet1_1 shufflenet_v2_x1_0 resnet50 resnext50_32x4d mobilenet_v2
        mobilenet_v3_large mnasnet1_0 densenet121 googlenet vit_b_16 swin_t convnext_tiny""".split()
    },
    "inception_v3": (2, 3, 299, 299),
    "segmentation.fcn_resnet50": (2, 3, 96, 96),
    "segmentation.deeplabv3_resnet50": (2, 3, 96, 96),
    "segmentation.lraspp_mobilenet_v3_large": (2, 3, 96, 96),
    "video.r3d_18": (1, 3, 4, 64, 64),
}

#: Models of transformers that take ``input_ids`` and ``labels``, the benchmarks' first.
LANGUAGE = """AlbertForMaskedLM AlbertForQuestionAnswering LongformerForMaskedLM BartForCausalLM BartForConditionalGeneration
BertForMaskedLM BertForQuestionAnswering BigBirdForMaskedLM BlenderbotSmallForCausalLM
BlenderbotSmallForConditionalGeneration CamembertForMaskedLM DebertaForMaskedLM DebertaForQuestionAnswering
DebertaV2ForMaskedLM DebertaV2ForQuestionAnswering DistilBertForMaskedLM DistilBertForQuestionAnswering ElectraForCausalLM
ElectraForQuestionAnswering GPT2ForSequenceClassification GPT2LMHeadModel GPTNeoForCausalLM GPTNeoForSequenceClassification
FNetForMaskedLM LayoutLMForMaskedLM LayoutLMForSequenceClassification M2M100ForConditionalGeneration MBartForCausalLM
MBartForConditionalGeneration MegatronBertForCausalLM MegatronBertForQuestionAnswering MobileBertForMaskedLM
MobileBertForQuestionAnswering OPTForCausalLM PLBartForCausalLM PLBartForConditionalGeneration PegasusForCausalLM
PegasusForConditionalGeneration RobertaForCausalLM RobertaForQuestionAnswering TrOCRForCausalLM XGLMForCausalLM
XLNetLMHeadModel ConvBertForMaskedLM T5ForConditionalGeneration LlamaForCausalLM MistralForCausalLM MixtralForCausalLM
Qwen2ForCausalLM Qwen3ForCausalLM GemmaForCausalLM Gemma2ForCausalLM PhiForCausalLM BloomForCausalLM GPTJForCausalLM
GPTNeoXForCausalLM FalconForCausalLM MambaForCausalLM RwkvForCausalLM ReformerModelWithLMHead FunnelForMaskedLM
MPNetForMaskedLM SqueezeBertForMaskedLM RoFormerForMaskedLM NystromformerForMaskedLM YosoForMaskedLM
LEDForConditionalGeneration ModernBertForMaskedLM OlmoForCausalLM CohereForCausalLM""".split()

#: What makes a configuration small, as far as it has the attribute.
_SMALL = {
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
    images = torch.randn(TORCHVISION[name])

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
    small = {
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


KINDS: dict[str, tuple[str, list[str], Callable[[str], Step]]] = {
    "transformers": ("Apache-2.0", LANGUAGE, language_step),
    "timm": ("Apache-2.0", TIMM, timm_step),
    "torchvision": ("BSD-3-Clause", list(TORCHVISION), torchvision_step),
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


def calls_of(make: Callable[[str], Step], name: str, *, fake: bool) -> Calls:
    """Returns how often a training step of a model calls each overload and each function. A ``fake`` step computes no
    values."""
    found: Calls = Counter(), Counter()
    with FakeTensorMode() if fake else nullcontext():
        step = make(name)
        with Functions(found[1]), Watching(lambda name: found[0].update((name,))):
            step().backward()  # type: ignore[no-untyped-call]
    return found


def recorded_model(package: str, name: str) -> Calls:
    """Returns the calls of a model of a package. Models of images are large, so their values are computed only if the model
    reads some."""
    make = KINDS[package][2]
    torch.manual_seed(0)
    if package != "transformers":
        with suppress(Exception):
            return calls_of(make, name, fake=True)
    return calls_of(make, name, fake=False)


def recorded() -> Iterator[tuple[str, Calls]]:
    """Yields each model that can be recorded, with its calls."""
    for package, (_, names, _) in KINDS.items():
        for name in names:
            started = time.perf_counter()
            try:
                found = recorded_model(package, name)
            except (
                Exception
            ) as error:  # another version of the package: the model is named and left out
                print(
                    f"left out: {package}:{name}: {type(error).__name__}: {error}"[:300],
                    file=sys.stderr,
                )
                continue
            print(
                f"{package}:{name}: {len(found[0])} overloads, {time.perf_counter() - started:.1f} s",
                flush=True,
            )
            yield f"{package}:{name}", found
            gc.collect()


def main() -> None:
    """Writes the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, required=True)
    output = parser.parse_args().output
    warnings.simplefilter("ignore")
    torch.set_num_threads(2)
    models: dict[str, Calls] = dict(recorded())
    head = {
        "source": "one training step (forward and backward, float32, CPU) of each model, recorded by benchmarks/training_runs.py",
        "torch": str(torch.__version__).partition("+")[0],
        "packages": {
            package: {"version": metadata.version(package).partition("+")[0], "licence": licence}
            for package, (licence, _, _) in KINDS.items()
        },
        "models": sorted(models),
    }
    text = json.dumps(head, indent=2)[:-2]
    for number, kind in enumerate(("overloads", "functions")):
        text += f',\n  "{kind}": {{\n{table_of([each[number] for each in models.values()])}\n  }}'
    output.write_text(f"{text}\n}}\n", encoding="utf-8")


def table_of(models: list[Counter[str]]) -> str:
    """Returns a line of JSON for each name: the number of models that call it, and the number of calls."""
    calls: Counter[str] = sum(models, Counter())
    return ",\n".join(
        f"    {json.dumps(name)}: [{sum(name in each for each in models)}, {calls[name]}]"
        for name in sorted(calls)
    )


if __name__ == "__main__":
    main()
