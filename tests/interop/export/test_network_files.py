"""Exported networks against PyTorch: ONNX, torch.export programs; the example without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.hf_models import small_architecture
from helpers.tiny_encoder import CONFIG, moving_frames, save_tiny, tiny_backbone, write_lossless

from sce_video.commands import export
from sce_video.datasets.transforms.decoding import cut_views
from sce_video.inference.classifier import class_probabilities
from sce_video.inference.embed import ViewOptions, embed_videos
from sce_video.inference.embed_job import VideoFiles
from sce_video.inference.model import load_model
from sce_video.interop.export.networks import ClipNetwork, export_network, largest_difference
from sce_video.interop.pretrained import load_network
from sce_video.options.connect import ExportOptions
from sce_video.registry import MODELS
from sce_video.utils.errors import MissingPackageError

pytest.importorskip("onnxruntime", reason="no onnxruntime: pip install sce-video[onnx]")

TRANSFORMER = dict(
    type="VisionTransformer3d", depth=1, embed_dims=16, num_heads=2, patch_size=8,
    grid_size=(2, 4, 4),
)  # fmt: skip
STUDENT = dict(type="EfficientNetLite", temporal=True, frame_pool="mean+absdiff+delta+energy")
BACKBONE = (
    "type='ResNet3dSlowPath', depth=18, base_channels=4, zero_init_residual=False,\n"
    "        init_cfg=dict(type='Pretrained', checkpoint='nowhere.pth')"
)


def checkpoint_of(settings: dict, path: Path, size: int = 32) -> Path:
    """A checkpoint of a random network whose BN does not leave its input as it is."""
    assert BACKBONE in CONFIG
    torch.manual_seed(0)
    network = MODELS.build(settings)
    for name, value in network.state_dict().items():
        if name.endswith("running_var"):
            value.uniform_(0.5, 1.5)
        elif value.dtype == torch.float32:
            value.add_(0.05 * torch.randn_like(value))
    text = ", ".join(f"{key}={value!r}" for key, value in settings.items())
    config = CONFIG.replace("size=32", f"size={size}").replace("size=40", f"size={size + 8}")
    return save_tiny(path, network, config.replace(BACKBONE, text))


def random_clips(size: int = 32, frames: int = 4) -> np.ndarray:
    """(14, T, S, S, 3) uint8."""
    return np.random.default_rng(0).integers(0, 256, (14, frames, size, size, 3), dtype=np.uint8)


def reference(model, clips: np.ndarray) -> np.ndarray:
    """Features by the data preprocessor and the encoder, one clip after the other."""
    with torch.inference_mode():
        views = [
            model.encoder.data_preprocessor({"inputs": [torch.from_numpy(clip[None])]})["inputs"]
            for clip in clips
        ]
        return torch.cat([model.encoder(view)[0] for view in views]).numpy()


def runner(path: Path):
    """A function of clips to the outputs of a file."""
    if path.suffix == ".pt2":
        program = torch.export.load(path).module()
        return lambda clips: [value.numpy() for value in program(torch.from_numpy(clips))]
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda clips: session.run(None, {"clips": clips})


def check_clips(path: Path, model, size: int = 32, frames: int = 4) -> None:
    clips = random_clips(size, frames)
    wanted, run = reference(model, clips), runner(path)
    for batch in (1, 7):
        parts = [run(clips[i : i + batch])[0] for i in range(0, 14, batch)]
        # Features of random weights may be in the hundreds, where float32 has steps of 3e-5.
        np.testing.assert_allclose(np.concatenate(parts), wanted, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("settings", [TRANSFORMER, STUDENT], ids=lambda settings: settings["type"])
def test_a_network_of_one_size_agrees_clip_by_clip(settings, tmp_path):
    """A transformer's positions belong to a size, and so does the padding of EfficientNet-Lite."""
    model = load_model(checkpoint_of(settings, tmp_path / "tiny.pth"), device="cpu")
    for kind, name in (("program", "model.pt2"), ("onnx", "model.onnx")):
        report = export_network(model, kind, tmp_path / name)
        assert report.outputs == ["features"]
        assert not report.any_size
        check_clips(report.path, model)
    video = write_lossless(tmp_path / "a.mp4", moving_frames(30, 60, 90))
    wanted = embed_videos(model, video, ViewOptions(num_clips=1, num_crops=1))[0]
    found = json.loads(run_example(report.path, video))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)


def test_an_image_encoder_of_transformers_is_exported_with_motion(tmp_path):
    pytest.importorskip("transformers", reason="no transformers: pip install 'sce-video[hf]'")
    architecture, pool = small_architecture("dinov2"), STUDENT["frame_pool"]
    settings = dict(type="HFEncoder", architecture=architecture, frame_pool=pool)
    model = load_model(checkpoint_of(settings, tmp_path / "tiny.pth"), device="cpu")
    assert model.feature_size == 3 * 32 + 343
    for kind, name in (("program", "model.pt2"), ("onnx", "model.onnx")):
        report = export_network(model, kind, tmp_path / name)
        assert not report.any_size
        check_clips(report.path, model)


@pytest.fixture(scope="module")
def exported(folder_classifier, tmp_path_factory) -> Path:
    """The toy classifier, a ResNet3D-18, as ONNX by the command."""
    out = tmp_path_factory.mktemp("onnx") / "classifier.onnx"
    assert export.main([str(folder_classifier), "--to", "onnx", "--out", str(out)]) == 0
    return out


def test_onnx_of_a_resnet_agree_clip_by_clip(exported, folder_classifier, capsys):
    model = load_model(folder_classifier, device="cpu")
    check_clips(exported, model, 36, 2)
    # Other lengths and sizes go through a convolutional network.
    clips = np.random.default_rng(1).integers(0, 256, (2, 5, 80, 104, 3), dtype=np.uint8)
    np.testing.assert_allclose(
        runner(exported)(clips)[0], reference(model, clips), rtol=0, atol=1e-4
    )
    assert export.main([str(folder_classifier), "--to", "onnx", "--out", str(exported)]) == 2
    assert "already exists. Remove it" in capsys.readouterr().err


def run_example(*words: object) -> str:
    """Output of the example in a process in which torch cannot be imported."""
    code = (
        "import sys, runpy; sys.modules['torch'] = None; sys.argv[:] = sys.argv[1:]; "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    example = Path(__file__).parents[3] / "examples" / "onnx_features.py"
    words = (sys.executable, "-c", code, example, *words)
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_accuracy_of_the_classifier_is_unchanged(exported, folder_classifier, split_videos):
    """Classes of all videos by the file, and of one by the example from the video itself."""
    classifier = load_network(folder_classifier, device="cpu")
    videos = sorted(split_videos.glob("class*/*.mp4"))
    labels = [int(video.parent.name == "class1") for video in videos]
    options = ViewOptions(num_clips=1, num_crops=1)
    wanted = class_probabilities(classifier, videos, options)
    reader = VideoFiles(classifier, options)
    clips = np.concatenate([cut_views(reader.read(str(video))).numpy() for video in videos])
    found = runner(exported)(clips)[1]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)
    assert (found.argmax(1) == labels).mean() == (wanted.argmax(1) == labels).mean()
    probability, name = run_example(exported, videos[0]).splitlines()[0].split()
    assert name == classifier.classes[int(wanted[0].argmax())]
    assert abs(float(probability) - wanted[0].max()) < 1e-3


def test_another_network_is_noticed(tmp_path):
    model = load_model(save_tiny(tmp_path / "tiny.pth"), device="cpu")
    other = load_model(save_tiny(tmp_path / "other.pth", tiny_backbone(seed=1)), device="cpu")
    shape = (4, 32, 32, 3)
    module = ClipNetwork(other)
    with pytest.raises(ValueError, match="differ from PyTorch's by"):
        largest_difference(
            *(ClipNetwork(model), shape),
            *(lambda clips: [v.numpy() for v in module(torch.from_numpy(clips))], "x"),
        )


def test_mistakes_are_named(tmp_path, monkeypatch):
    model = load_model(save_tiny(tmp_path / "tiny.pth"), device="cpu")
    with pytest.raises(ValueError, match="must end in .onnx with to onnx, got"):
        ExportOptions(source="RUN", to="onnx", out="model.pt")
    with pytest.raises(ValueError, match=r"one of pretrained, onnx, program, .*got 'tensorrt'"):
        ExportOptions(source="RUN", to="tensorrt", out="model.plan")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(
        MissingPackageError, match=r"needs onnxscript. Run pip install sce-video\[onnx"
    ):
        export_network(model, "onnx", tmp_path / "model.onnx")
