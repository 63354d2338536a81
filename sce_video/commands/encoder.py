"""A model of transformers as the folder of a run: a config and a checkpoint.

    sce-video encoder MODEL --out RUN [--pool mean] [--frames 16] [--fps 4] [--recipe CONFIG ...]

MODEL is a folder as save_pretrained() writes it, or a name on the hub (owner/model). What takes a
run takes it then; `hf:MODEL` in place of RUN is the same with the model's own settings. With
--recipe, the recipe is written to RUN too, with this encoder, its weights and its clips.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from sce_video.commands.arguments import command_line, number, output
from sce_video.datasets.named_files import check_run
from sce_video.engine.recipes import find_recipe
from sce_video.utils.command import command, printable
from sce_video.utils.run_files import MODEL_PREFIX, find_checkpoints

#: Of :mod:`sce_video.models.backbones.hf_encoder`, whose import takes seconds.
POOLS = ("mean", "class", "mean_norm", "attentive", "projection")


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Import and print what was found; returns the exit status."""
    parser, add = command_line("A model of transformers as the folder of a run.")
    add("model MODEL", "folder of a model, or owner/model")
    add("--out RUN", "folder of the run", output(Path), required=True)
    add("--pool", "default: the model's own", choices=POOLS)
    add("--frames", "frames of a clip (default: the model's own)", number(int, 1))
    add("--fps", "frames per second of a clip (default: the model's own)", number(float, above=0))
    add("--recipe CONFIG", "also write these recipes with this encoder", nargs="+", default=[])
    args = parser.parse_args(argv)
    if any(path.name != "epoch_0.pth" for path in find_checkpoints(args.out)):
        raise ValueError(f"{args.out} holds a training: give another folder (--out)")
    check_run(MODEL_PREFIX + args.model.removeprefix(MODEL_PREFIX))
    for recipe in args.recipe:
        find_recipe(recipe)
    # Imported here, as in all commands: a wrong command line must not wait for torch.
    from sce_video.inference.encoders.encoder_folder import import_encoder, write_recipe

    imported = import_encoder(
        args.model, args.out, pool=args.pool, frames=args.frames, fps=args.fps
    )
    settings = imported.settings
    clip = "spread over the whole video"
    if settings.clip_duration is not None:
        clip = f"of {settings.clip_duration:.3g} s"
    lines = [
        f"{imported.checkpoint}: {imported.backbone['architecture']['model_type']}, "
        f"{imported.parameters:,} parameters, pool: {imported.backbone['pool']}",
        f"  clips: {settings.num_frames} frames {clip}, {settings.crop_size}x{settings.crop_size} "
        f"pixels from a short side of {settings.short_side} ({settings.interpolation})",
    ]
    if imported.unused:
        lines.append(f"  {imported.unused} weights of other parts (decoder, classifier) left out")
    if imported.has_text:
        lines.append("  has a text encoder: sce-video search --text WORDS --index INDEX")
    print("\n".join(map(printable, lines)))
    for recipe in args.recipe:
        path = write_recipe(recipe, args.out, imported.backbone, settings, imported.checkpoint)
        print(printable(f"written to {path}: sce-video train {shlex.quote(str(path))}"))
    return 0
