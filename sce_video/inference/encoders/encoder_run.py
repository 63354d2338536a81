"""``sce-video encoder``: a third-party network as the folder of a run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sce_video.datasets.named_files import check_out, check_run
from sce_video.engine.recipes import find_recipe
from sce_video.options.connect import EncoderOptions
from sce_video.utils.run_files import MODEL_PREFIX, find_checkpoints, is_model, split_pool

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
    """Write a third-party network as the folder of a run.

    Raises:
        ValueError: If the folder contains a training run, there is no such recipe or pool, or the
            model cannot be read.
        MissingPackageError: If the package that the network needs is not installed.
    """
    check_out(options.out)
    if any(path.name != "epoch_0.pth" for path in find_checkpoints(options.out)):
        raise ValueError(f"{options.out} contains a training run. Give another folder (--out)")
    named = is_model(options.model) or os.path.isfile(options.model)
    network = options.model if named else MODEL_PREFIX + options.model
    check_run(network)
    network, pool = split_pool(network)
    if pool is not None and options.pool is not None:
        raise ValueError(f"{options.model} names a pool. Remove --pool {options.pool}")
    for recipe in options.recipe:
        find_recipe(recipe)
    # Import these modules only now, so that a wrong name is reported before torch loads.
    from sce_video.inference.encoders.encoder_folder import import_encoder, write_recipe

    imported = import_encoder(
        network, options.out, pool=pool or options.pool, frames=options.frames, fps=options.fps
    )
    how = imported.backbone, imported.settings, imported.checkpoint
    written = [write_recipe(recipe, options.out, *how) for recipe in options.recipe]
    return EncoderResult(imported, written)
