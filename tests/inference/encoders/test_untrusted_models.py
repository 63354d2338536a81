"""What a stranger's model may name: sizes of a network; never code, kernels or files elsewhere."""

from __future__ import annotations

import json
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from helpers.hf_models import FAMILIES, pe_video_config

from sce_video.inference.encoders.encoder_folder import import_encoder
from sce_video.inference.encoders.text import text_feature
from sce_video.inference.encoders.transformers_files import EncoderError, read_encoder_config
from sce_video.models.backbones.hf_encoder import (
    HFEncoder,
    architecture_of,
    config_of,
    transformers,
)
from sce_video.utils.errors import MissingPackageError

#: What transformers 4 wrote beside the sizes, also for parts of a model: entries of
#: openai/clip-vit-base-patch32 and of others.
_OLD = json.loads(Path(__file__).with_name("written_by_transformers_4.json").read_text())
#: Keys and values that make a version of transformers load, download or import.
ATTACKS = [
    ("attn_implementation", "evil/kernel"),
    ("attn_implementation", "flash_attention_2"),
    ("_attn_implementation", "evil/kernel@main:layer"),
    ("_attn_implementation_internal", "paged|evil/kernel"),
    ("attn_implementation", {"": "sdpa", "vision_config": "evil/kernel"}),
    ("experts_implementation", "evil/kernel"),
    ("quantization_config", {"quant_method": "evil"}),
    ("compression_config", {"quant_method": "evil"}),
    ("auto_map", {"AutoModel": "modeling_x.X"}),
    ("custom_pipelines", {"x": {"impl": "x.X"}}),
    ("adapter_config", {"base_model_name_or_path": "evil/model"}),
    ("_adapter_model_path", "evil/adapter"),
    ("base_model_name_or_path", "evil/model"),
    ("peft_config", {"auto_mapping": {"parent_library": "os"}}),
    ("backbone", "evil/model"),
    ("use_timm_backbone", True),
    ("backbone_config", {"model_type": "bert"}),
    ("use_kernels", True),
    ("kernel_config", {"RMSNorm": "evil/kernel:RMSNorm"}),
    ("trust_remote_code", True),
    ("transformers_weights", "../other.safetensors"),
    ("fusion_config", {"x": True}),
    ("per_layer_config", {"0": {"attn_implementation": "evil/kernel"}}),
    ("text_model", "evil/model"),
    ("torch_dtype", "load"),
    ("dtype", "hub.load"),
    ("hidden_act", "evil/kernel"),
    ("hidden_size", {"evil": 1}),
]
_TIMM = "video_config.vision_config"
#: A part of the config of each family; of pe_video without its network, which needs timm.
PARTS = [
    *(("videomae", ""), ("clip", "vision_config"), ("clip", "text_config_dict")),
    *(("siglip", "text_config"), ("siglip2", "vision_config"), ("videoprism", "vision_config")),
    *(("videoprism_vision_model", ""), ("dinov3_convnext", ""), ("pe_video", "")),
    *(("pe_video", "text_config"), ("pe_video", "video_config"), ("pe_video", _TIMM)),
]


@pytest.fixture
def requests(monkeypatch):
    """Names of kernels that are asked for, as with the package ``kernels`` installed."""
    from transformers import modeling_utils
    from transformers.integrations import hub_kernels

    asked = []

    def get_kernel(name, **_):
        asked.append(name)
        raise ImportError(f"{name} would be imported")

    for module in (modeling_utils, hub_kernels):
        monkeypatch.setattr(module, "is_kernels_available", lambda *_: True, raising=False)
    monkeypatch.setattr(hub_kernels, "get_kernel_hub", get_kernel, raising=False)
    return asked


def test_the_canary_is_asked_for_a_kernel(hf_model, requests):
    """transformers itself, with the same entry."""
    config = config_of(_architecture(hf_model, "videomae"))
    config._attn_implementation = "evil/kernel"
    with pytest.raises(ValueError, match="would be imported"):
        type(hf_model("videomae")[1])(config)
    assert requests == ["evil/kernel"]


def _architecture(hf_model, family):
    pe_video = family == "pe_video"
    return architecture_of(pe_video_config() if pe_video else hf_model(family)[1].config)


def _changed(architecture, path, value):
    *parts, key = path.strip(".").split(".")
    node = architecture
    for part in parts:
        node = node.setdefault(part, {})
    node[key] = value
    return architecture


@pytest.mark.parametrize(("family", "part"), PARTS)
@pytest.mark.parametrize(("key", "value"), ATTACKS)
def test_an_entry_that_asks_for_more(key, value, family, part, hf_model, requests, tmp_path):
    architecture = _changed(_architecture(hf_model, family), f"{part}.{key}", value)
    with pytest.raises(ValueError, match=rf"{part}\.?{key}"):
        HFEncoder(architecture)
    (tmp_path / "config.json").write_text(json.dumps(architecture))
    with pytest.raises(EncoderError, match=rf"config\.json: .*{part}\.?{key}"):
        read_encoder_config(tmp_path)
    assert requests == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *(("text_config.model_type", name) for name in ("bert", None)),
        *((f"{_TIMM}.architecture", n) for n in ("resnet50", "hf-hub:e/x", "vit_pe_core_/../e")),
        *((f"{_TIMM}.{n}", {"file": "evil.pth"}) for n in ("model_args", "pretrained_cfg")),
        ("video_config.rope_parameters", {"rope_type": "evil/code"}),
    ],
)
def test_what_a_perception_encoder_may_not_name(path, value, hf_model, tmp_path):
    architecture = _changed(_architecture(hf_model, "pe_video"), path, value)
    with pytest.raises(ValueError, match=path.rpartition(".")[0]):
        config_of(architecture)
    video = architecture.pop("video_config")
    architecture |= {"model_type": "pe_audio_video", "audio_video_config": {"video_config": video}}
    (tmp_path / "config.json").write_text(json.dumps(architecture))
    with pytest.raises(EncoderError, match=path.rpartition(".")[0]):
        read_encoder_config(tmp_path)


@pytest.mark.skipif(find_spec("timm") is None, reason="no timm")
def test_a_perception_encoder_needs_torchvision(hf_model, monkeypatch):
    """transformers itself says that timm is not installed."""
    monkeypatch.setattr("transformers.utils.is_timm_available", lambda: False)
    with pytest.raises(MissingPackageError, match="needs torchvision next to timm"):
        HFEncoder(_architecture(hf_model, "pe_video"))


@pytest.mark.parametrize(
    ("family", "path", "value"),
    [
        *(("videomae", "num_hidden_layers", layers) for layers in (2**40, 2**16, "many")),
        *(("dinov3_convnext", "depths", d) for d in ([2**20] * 4, [1] * 10**5, [1])),
        *(
            ("siglip", f"text_config.{name}", 2**16)
            for name in ("num_hidden_layers", "hidden_size")
        ),
        ("siglip", "vision_config.patch_size", [8, 4]),
        ("siglip2", "text_config.vocab_size", 2**19),
        ("videoprism", "vision_config.tubelet_size", []),
    ],
)
def test_sizes_are_bounded_by_the_files_before_they_take_memory(
    family, path, value, hf_model, tmp_path
):
    folder = shutil.copytree(hf_model(family)[0], tmp_path / "model")
    stored = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(_changed(stored, path, value)))
    with pytest.raises(EncoderError):
        import_encoder(str(folder), tmp_path / "run")


def test_a_table_of_a_text_is_counted_before_it_is_computed(hf_model, tmp_path):
    imported = import_encoder(str(hf_model("videoprism")[0]), tmp_path / "run")
    text = imported.backbone["architecture"]["text_config"]
    text |= {"max_position_embeddings": 2**16, "hidden_size": 2**16}  # 16 GiB
    with pytest.raises(ValueError, match="larger than the weights"):
        text_feature(imported.checkpoint, imported.backbone, "a")


@pytest.mark.parametrize("family", FAMILIES)
def test_what_transformers_writes_is_read(family, hf_model, tmp_path):
    folder, model = hf_model(family)
    stored = json.loads((folder / "config.json").read_text())
    assert architecture_of(read_encoder_config(folder)) == architecture_of(model.config)
    for part in ("text_config", "vision_config"):
        if part in stored:
            stored[part] = {**_OLD, **stored[part]}
            if "clip" in family:
                stored[f"{part}_dict"] = stored[part]
    (tmp_path / "config.json").write_text(json.dumps({**_OLD, **stored}))
    assert architecture_of(read_encoder_config(tmp_path)) == architecture_of(model.config)


def test_other_files_of_a_folder_are_not_read(hf_model, requests, tmp_path):
    folder, canary = tmp_path / "model", tmp_path / "canary"
    shutil.copytree(hf_model("clip")[0], folder)
    code = f"open({str(canary)!r}, 'w')\nclass X: pass\n"
    (folder / "modeling_x.py").write_text(code)
    for name, content in {
        "adapter_config.json": {"peft_type": "LORA", "base_model_name_or_path": "evil/model"},
        "tokenizer_config.json": {
            "auto_map": {"AutoTokenizer": ["modeling_x.X", "modeling_x.X"]},
            "tokenizer_class": "X",
        },
        "processor_config.json": {"auto_map": {"AutoProcessor": "modeling_x.X"}},
        "generation_config.json": {"custom_generate": "evil/model"},
        "model.safetensors.index.json": {"weight_map": {"a": str(canary)}},
    }.items():
        (folder / name).write_text(json.dumps(content))
    processor = json.loads((folder / "preprocessor_config.json").read_text())
    processor |= {"auto_map": {"AutoImageProcessor": "modeling_x.X"}, "processor_class": "X"}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    runs = [import_encoder(str(f), tmp_path / f.name) for f in (hf_model("clip")[0], folder)]
    assert runs[1].has_text and not canary.exists() and requests == []
    first, second = (torch.load(run.checkpoint, weights_only=True) for run in runs)
    assert first["meta"]["text"] == second["meta"]["text"]
    assert all(torch.equal(v, second["state_dict"][k]) for k, v in first["state_dict"].items())


@pytest.mark.parametrize("shards", [False, True])
def test_weights_in_the_files_of_torch(shards, hf_model, tmp_path):
    """The same weights in one pickle, or in two and without safetensors."""
    source, folder = hf_model("dinov2")[0], tmp_path / "model"
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    weights = dict(hf_model("dinov2")[1].state_dict())
    names = sorted(weights)
    files = {"pytorch_model.bin": names}
    if shards:
        files = {f"pytorch_model-0000{i}-of-00002.bin": names[i - 1 :: 2] for i in (1, 2)}
    for file, part in files.items():
        torch.save({name: weights[name] for name in part}, folder / file)
    runs = [import_encoder(str(f), tmp_path / f"run{i}") for i, f in enumerate((source, folder))]
    first, second = (torch.load(run.checkpoint)["state_dict"] for run in runs)
    assert first and all(torch.equal(value, second[key]) for key, value in first.items())


def test_a_pickle_among_the_weights_is_not_run(hf_model, tmp_path):
    folder, canary = tmp_path / "model", tmp_path / "canary"
    ignored = shutil.ignore_patterns("*.safetensors")
    shutil.copytree(hf_model("dinov2")[0], folder, ignore=ignored)

    class Evil:
        def __reduce__(self):
            return open, (str(canary), "w")

    torch.save({"a": Evil()}, folder / "pytorch_model.bin")
    with pytest.raises(EncoderError, match="more than plain data"):
        import_encoder(str(folder), tmp_path / "run")
    assert not canary.exists()


def test_a_tokenizer_in_two_files(hf_model, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(hf_model("clip")[0], folder, ignore=shutil.ignore_patterns("tokenizer*"))
    vocabulary = json.loads((hf_model("clip")[0] / "tokenizer.json").read_text())["model"]["vocab"]
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    runs = [import_encoder(str(f), tmp_path / f"run{i}") for i, f in enumerate(
        (hf_model("clip")[0], folder))]  # fmt: skip
    first, second = (torch.load(r.checkpoint)["meta"]["text"]["tokenizer"] for r in runs)
    assert json.loads(first) == json.loads(second)


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("config.json", "hidden_act", "nonsense"),
        ("config.json", "hidden_size", -1),
        ("preprocessor_config.json", "size", "large"),
        ("preprocessor_config.json", "size", {"height": float("inf"), "width": 1}),
    ],
)
def test_a_value_that_no_network_has(file, key, value, hf_model, tmp_path):
    folder = shutil.copytree(hf_model("dinov2")[0], tmp_path / "model")
    stored = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**stored, key: value}))
    with pytest.raises(EncoderError):
        import_encoder(str(folder), tmp_path / "run")


def test_a_torchvision_of_another_build_is_one_sentence(tmp_path, monkeypatch):
    """As a wheel for CUDA beside torch for CPUs; models of transformers would import it."""
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    with pytest.raises(
        MissingPackageError, match=r"\(operator nms does not exist\)\..* a build for this torch"
    ):
        transformers()
