"""``sce-video encoder``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sce_video.options.command_line import parse
from sce_video.options.connect import EncoderOptions
from sce_video.utils.command import command, printable

if TYPE_CHECKING:
    from sce_video.inference.encoders.encoder_run import EncoderResult


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Import an encoder and return the exit status."""
    options = parse(EncoderOptions, argv)
    # Imported here, so that --help does not load NumPy.
    from sce_video.inference.encoders.encoder_run import encoder

    print("\n".join(map(printable, _summary(encoder(options)))))
    return 0


def _summary(result: EncoderResult) -> list[str]:
    """Return the lines about the encoder, its clips and the recipes."""
    imported, settings = result.imported, result.imported.settings
    clip = "spread over the whole video"
    if settings.clip_duration is not None:
        clip = f"of {settings.clip_duration:.3g} s"
    lines = [
        f"{imported.checkpoint}: {imported.kind}, {imported.parameters:,} parameters, "
        f"pool: {imported.pool}",
        f"  clips: {settings.num_frames} frames {clip}, {settings.crop_size}x{settings.crop_size} "
        f"pixels from a short side of {settings.short_side} ({settings.interpolation})",
    ]
    if imported.unused:
        lines.append(f"  {imported.unused} weights of other parts (decoder, classifier) left out")
    if imported.has_text:
        lines.append("  has a text encoder: sce-video search --text WORDS --index INDEX")
    for path in result.recipes:
        lines.append(f"written to {path}: sce-video train {shlex.quote(str(path))}")
    return lines
