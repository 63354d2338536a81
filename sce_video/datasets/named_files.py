"""Check the files and folders that a user names, before anything heavy is imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from sce_video.datasets.sources import (
    check_folder,
    describe_others,
    find_files,
    is_elsewhere,
    is_table,
    is_table_folder,
    no_file,
)
from sce_video.datasets.video_list import VIDEO_EXTENSIONS, video_of
from sce_video.utils.command import printable
from sce_video.utils.files import read_text
from sce_video.utils.run_files import (
    MODEL_PREFIX,
    check_pool,
    is_model,
    is_public_network,
    model_folder,
    newest_checkpoint,
    packaged_network,
    split_pool,
    weights_file,
)
from sce_video.utils.storage import is_url


def check_run(run: str | Path) -> None:
    """Check that RUN refers to a checkpoint, as far as possible without reading or downloading it.

    Raises:
        FileNotFoundError: If the folder has no checkpoints, or the file does not exist.
        ValueError: If ``hf:`` is not followed by a folder or a name, or a pool is unknown.
    """
    run, pool = split_pool(run)
    if pool is not None:
        check_pool(run, pool)
    if is_public_network(run):
        weights_file(run)
    elif is_model(run):
        name = run.removeprefix(MODEL_PREFIX)
        if not os.path.isdir(name) and name.count("/") != 1:
            raise ValueError(f"{name} is neither a folder nor a name on the hub (owner/model)")
    elif is_url(run) or model_folder(run) is not None:
        return
    elif not os.path.isfile(path := newest_checkpoint(run)):
        raise FileNotFoundError(f"no checkpoint at {path} (local files, s3:// and gs:// are read)")


def check_network(source: str) -> None:
    """Check that SOURCE refers to a network to start from or to learn from.

    Raises:
        FileNotFoundError: If the run or file does not exist.
        ValueError: If ``hf:`` is not followed by a folder or a name, or a pool is unknown.
    """
    if is_model(source) or packaged_network(source):
        check_run(source)
    else:
        check_exists(source, "run, checkpoint or model of transformers (hf:NAME)")


def check_videos(
    root: str, extensions: Sequence[str] | None = None, dataset: str | None = None
) -> None:
    """Check that a table or a folder with videos exists, and print which files are left out.

    Args:
        root: Path of the table or folder.
        extensions: Extensions of the files in a folder.
        dataset: Registered class that lists the videos of the folder itself.

    Raises:
        FileNotFoundError: If the table does not exist.
        ValueError: If the folder does not exist, is a file, or contains no video.
    """
    if dataset is not None:
        if not os.path.isdir(root) or is_table(root):
            raise ValueError(
                f"--dataset {dataset} lists the videos of a folder, but {root} is not a folder"
            )
        return
    if is_table(root):
        check_exists(root, "table")
        return
    if os.path.isfile(root):
        raise ValueError(f"{root} is a file. Give a folder of videos or a table (v.lance)")
    check_folder(root)
    tell_others(root, extensions)


def tell_others(root: str, extensions: Sequence[str] | None = None) -> None:
    """Print how many files of a folder are left out because of their extensions.

    Raises:
        ValueError: If the folder contains no video.
    """
    extensions = VIDEO_EXTENSIONS if extensions is None else extensions
    found, others = find_files(root, extensions)
    if not found:
        raise ValueError(no_file(root, extensions, others))
    if others and os.environ.get("RANK", "0") == "0":  # only one process per launch prints this
        count = f"{len(found)} video{'s' * (len(found) != 1)}"
        text = f"{root}: {count}, and {describe_others(others, extensions)}"
        print(printable(text, sys.stderr), file=sys.stderr, flush=True)


def check_exists(path: str | os.PathLike[str] | None, what: str) -> None:
    """Raise FileNotFoundError if a local path does not exist. URLs and rows are not checked."""
    if path is None:
        return
    name = os.fspath(path)
    if not is_elsewhere(name) and not os.path.exists(video_of(name)):
        raise FileNotFoundError(f"no {what} at {name}")


def check_index(folder: str) -> None:
    """Raise FileNotFoundError unless a folder contains an index or is a table."""
    files = (file for kind in ("features*", "records*") for file in Path(folder).glob(kind))
    if not is_table_folder(folder) and next(files, None) is None:
        raise FileNotFoundError(
            f"there is no index in {folder}. Build it with sce-video index VIDEOS --checkpoint RUN "
            f"--out {folder}"
        )


def check_out(path: str) -> None:
    """Raise ValueError if nothing can be written at the value of ``--out``.

    A path that cannot be written is refused before hours of work, not after them.
    """
    if is_url(path):
        return
    target = Path(os.path.abspath(path))
    # Start from the folder itself or, if it does not exist, from the nearest folder above it.
    around = [target] * target.is_dir() + list(target.parents)
    nearest = next(folder for folder in around if os.path.lexists(folder))
    if not nearest.is_dir():
        reason = f"{nearest} is not a folder"
    elif not os.access(nearest, os.W_OK | os.X_OK):
        reason = f"no rights to write in {nearest}"
    else:
        return
    raise ValueError(f"--out must be a path that can be written, got {path}: {reason}")


def class_names_of(path: str | None) -> list[str] | None:
    """Return the lines of a file of class names (``--classes``); None without a file.

    The first line is the name of label 0. For an empty file, the result is ``[""]``.

    Raises:
        FileNotFoundError: If the file does not exist.
    """
    if path is None:
        return None
    check_exists(path, "file of class names")
    return read_text(path).rstrip("\n").split("\n")
