"""``sce-video encoder``: a model of transformers as the folder of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sce_video.datasets.named_files import check_out, check_run
from sce_video.engine.recipes import find_recipe
from sce_video.options.connect import EncoderOptions
from sce_video.utils.run_files import MODEL_PREFIX, find_checkpoints, is_public_network

if TYPE_CHECKING:
    from sce_video.inference.encoders.encoder_folder import ImportedEncoder


@dataclass(frozen=True)
class EncoderResult:
    """Result of importing an encoder.

    Attributes:
        imported: The encoder, its checkpoint and its input.
        recipes: Files of the recipes that were written with it.
    """

    imported: ImportedEncoder
    recipes: list[Path]


def encoder(options: EncoderOptions) -> EncoderResult:
    """Write a model of transformers as the folder of a run.

    Raises:
        ValueError: If the folder contains a training, there is no such recipe, or the model cannot
            be read.
        MissingPackageError: If transformers is not installed.
    """
    check_out(options.out)
    if any(path.name != "epoch_0.pth" for path in find_checkpoints(options.out)):
        raise ValueError(f"{options.out} holds a training: give another folder (--out)")
    is_public = is_public_network(options.model)
    check_run(
        options.model if is_public else MODEL_PREFIX + options.model.removeprefix(MODEL_PREFIX)
    )
    for recipe in options.recipe:
        find_recipe(recipe)
    # Imported here because wrong names are answered before torch is imported.
    from sce_video.inference.encoders.encoder_folder import (
        import_encoder,
        import_public_network,
        write_recipe,
    )

    write = import_public_network if is_public else import_encoder
    imported = write(
        options.model, options.out, pool=options.pool, frames=options.frames, fps=options.fps
    )
    how = imported.backbone, imported.settings, imported.checkpoint
    written = [write_recipe(recipe, options.out, *how) for recipe in options.recipe]
    return EncoderResult(imported, written)
