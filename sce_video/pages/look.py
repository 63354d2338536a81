"""``sce-video look``: draw which parts of a video support a class or resemble a frame."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sce_video.datasets.named_files import check_exists, check_out, check_run, class_names_of
from sce_video.options.measure import LookOptions

if TYPE_CHECKING:
    from sce_video.pages.cell_map_strip import MapStrip, Scale


@dataclass
class LookResult:
    """Maps of some videos.

    Attributes:
        title: Meaning of the maps.
        quantity: Name of the quantity in the maps.
        strips: Frames and maps of each clip.
        grid: Sentence about the size of a cell in frames and pixels.
        scale: Values of the darkest and the brightest colour.
        failures: Path and reason of each file that could not be decoded.
    """

    title: str
    quantity: str
    strips: list[MapStrip]
    grid: str
    scale: Scale | None = None
    failures: list[tuple[str, str]] = field(default_factory=list)


def look(options: LookOptions) -> LookResult:
    """Draw the maps of videos or images, and write them as a picture or a page.

    Raises:
        FileNotFoundError: If the checkpoint or a file does not exist.
        ValueError: If a class is explained and the checkpoint contains no classifier, no file can
            be decoded, or the class, frame or cell does not exist.
    """
    check_out(options.out)
    check_run(options.checkpoint)
    for path in (*options.videos, options.query, options.key):
        check_exists(path, "video or image")
    names = class_names_of(options.classes)
    # Import these modules only now, so that a wrong path is reported before torch loads.
    from sce_video.pages.cell_map_strip import Scale, common_scale, write_maps

    found = _look_for_class(options, names) if options.query is None else _look_for_frame(options)
    # Use one scale for all strips, so that their colours can be compared.
    if options.scale is None:
        maps = [strip.maps for strip in found.strips if strip.maps is not None]
        scale = common_scale(maps, found.quantity)
    else:
        low, high = options.scale
        scale = Scale(low, high, found.quantity)
    found.scale = scale
    colours = f"colours from {scale.low:.3g} to {scale.high:.3g}"
    note = f"{found.grid}; {colours}, the same for all frames"
    write_maps(Path(options.out), found.strips, scale, found.title, note)
    return found


def _look_for_class(options: LookOptions, names: list[str] | None) -> LookResult:
    """Return class-activation maps of a classifier."""
    from sce_video.datasets.readers.base import VideoDecodeError
    from sce_video.inference.cell_maps import class_activation
    from sce_video.inference.classifier import NoClassifierError, load_classifier
    from sce_video.pages.cell_map_strip import activation_strips, describe_grid

    try:
        classifier = load_classifier(options.checkpoint, options.config, options.device, names)
    except NoClassifierError as error:
        raise ValueError(
            f"{error}. To compare two videos with this network, run sce-video look "
            f"{options.checkpoint} --query FILE --key FILE"
        ) from None
    found, shown = LookResult("", "added to the score", [], ""), []
    # An image network uses one frame per clip, so use several clips to show the video.
    one_frame = classifier.settings.num_frames == 1 and options.at is None
    clips = options.clips or (options.frames if one_frame else 1)
    for path in options.videos:
        try:
            seen = class_activation(
                classifier, path, options.class_name, clips, options.at, options.size
            )
        except VideoDecodeError as error:
            found.failures.append((path, error.reason))
            continue
        found.strips += activation_strips(classifier, seen, options.frames)
        found.grid = describe_grid(seen.clips[0], seen.maps[0].shape)
        shown.append(classifier.classes[seen.label])
    if not found.strips:
        listed = "; ".join(map(": ".join, found.failures))
        raise ValueError(f"none of the files can be decoded: {listed}")
    found.title = f"Evidence for {', '.join(dict.fromkeys(shown))}"
    return found


def _look_for_frame(options: LookOptions) -> LookResult:
    """Return maps of the similarity between a frame of the query and the cells of the key."""
    from sce_video.inference.cell_maps import cell_similarity
    from sce_video.inference.model import load_model
    from sce_video.pages.cell_map_strip import describe_grid, similarity_strips

    assert options.query is not None and options.key is not None  # ensured by LookOptions.check
    model = load_model(options.checkpoint, options.config, options.device)
    seen = cell_similarity(
        model,
        options.query,
        options.key,
        options.frame,
        options.chosen_cell,
        num_clips=options.clips or (options.frames if model.settings.num_frames == 1 else 1),
        at=options.at,
        size=options.size,
    )
    strips = similarity_strips(seen, options.frames)
    grid = describe_grid(seen.keys[0], seen.maps[0].shape)
    return LookResult("Similarity to the marked frame", "cosine similarity", strips, grid)
