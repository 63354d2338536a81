"""What is no encoder is refused, with what to do."""

from __future__ import annotations

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file

from sce_video.commands.main import main
from sce_video.inference.encoders.encoder_folder import import_encoder


def changed(folder, target, file="config.json", **changes):
    """A copy of a model with other entries in a JSON file; None removes one."""
    shutil.copytree(folder, target)
    stored = {**json.loads((target / file).read_text()), **changes}
    stored = {key: value for key, value in stored.items() if value is not None}
    (target / file).write_text(json.dumps(stored))
    return str(target)


@pytest.fixture
def mae(hf_model):
    return hf_model("videomae")[0]


def refused(capsys, model, out, *options):
    """The message of the command."""
    assert main(["encoder", model, "--out", str(out), *options]) == 2
    message = capsys.readouterr().err
    assert message.startswith("sce-video encoder: error: ") and message.count("\n") == 1
    assert not list(out.glob("*.pth"))
    return message


def test_models_that_are_refused(mae, tmp_path, capsys):
    out = tmp_path / "run"
    remote = changed(mae, tmp_path / "m1", auto_map={"AutoModel": "modeling_x.X"})
    assert "may load code or files from elsewhere" in refused(capsys, remote, out)
    assert "models of type 'bert'" in refused(
        capsys, changed(mae, tmp_path / "m2", model_type="bert"), out
    )
    wrong = changed(mae, tmp_path / "m3", hidden_size="many")
    assert "hidden_size" in refused(capsys, wrong, out)
    wrong = changed(mae, tmp_path / "m4", "preprocessor_config.json", size={"a": 1})
    assert "contains a step that is not supported" in refused(capsys, wrong, out)
    assert "has no config.json" in refused(capsys, str(tmp_path), out)
    assert "neither a folder nor a name" in refused(capsys, "some where", out)
    assert "cannot be fetched from the hub" in refused(capsys, "MCG-NJU/videomae-base", out)
    assert "must be one of mean, got 'class'" in refused(capsys, str(mae), out, "--pool", "class")
    assert "accepts clips of 4 frames" in refused(capsys, str(mae), out, "--frames", "5")
    assert "--fps must be above 0, got -1" in refused(capsys, str(mae), out, "--fps", "-1")
    (tmp_path / "m4" / "preprocessor_config.json").unlink()
    assert "no processor settings" in refused(capsys, str(tmp_path / "m4"), out)


def test_weights_that_are_missing_damaged_or_too_many(mae, tmp_path, capsys):
    folder = tmp_path / "model"
    shutil.copytree(mae, folder)
    weights = load_file(folder / "model.safetensors")
    head = {f"videomae.{key}": value for key, value in weights.items()}
    name = "encoder.layer.1.layernorm_after.weight"
    head["classifier.weight"] = weights[name].clone()
    save_file(head, folder / "model.safetensors", metadata={"format": "pt"})
    assert import_encoder(str(folder), tmp_path / "run").unused == 1
    stray = "encoder.layer.1.attention.attention.k_bias"
    many = {**head, f"videomae.{stray}": weights[name].clone()}
    save_file(many, folder / "model.safetensors", metadata={"format": "pt"})
    message = refused(capsys, str(folder), tmp_path / "none")
    assert "contains 1 weights that VideoMAEModel" in message and stray in message
    del weights[name]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    message = refused(capsys, str(folder), tmp_path / "none")
    assert f"lacks 1 weights of VideoMAEModel, the first is {name}" in message
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
    assert "are damaged" in refused(capsys, str(folder), tmp_path / "none")
