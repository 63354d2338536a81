"""``sce-video encoder``."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from sce_video.options.connect import EncoderOptions
from sce_video.utils.command import command, printable

if TYPE_CHECKING:
    from sce_video.inference.encoders.encoder_run import EncoderResult


@command(options=EncoderOptions)
def main(options: EncoderOptions) -> int:
    """Convert the encoder, and return 0."""
    from sce_video.inference.encoders.encoder_run import encoder

    print("\n".join(map(printable, _summary(encoder(options)))))
    return 0


def _summary(result: EncoderResult) -> list[str]:
    """Describe the encoder, its clips and the recipes that were written."""
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
        lines.append(f"  {imported.unused} weights of a decoder or a classifier were left out")
    if imported.has_text:
        lines.append("  has a text encoder: sce-video search --text WORDS --index INDEX")
    for path in result.recipes:
        lines.append(f"written to {path}: sce-video train {shlex.quote(str(path))}")
    return lines
