"""From the official downloads of a transfer set to lists of its splits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from sce_video.data_tools.prepare import transfer_sets as cifar
from sce_video.data_tools.prepare import transfer_sets as matlab_lists
from sce_video.data_tools.prepare import transfer_sets as text_lists
from sce_video.data_tools.prepare import transfer_sets as voc2007
from sce_video.data_tools.prepare.lists import Options, prepare, write_outputs
from sce_video.data_tools.prepare.transfer_sets import TransferLists, locate_images


class TransferSet(NamedTuple):
    """Layout of the unpacked official downloads, and their reader."""

    layout: str
    read: Callable[[Path], TransferLists]


#: The eleven sets of tab:many-shot, by the names of sce-video prepare.
TRANSFER_SETS = {
    "food101": TransferSet(text_lists.FOOD_LAYOUT, text_lists.read_food),
    "cifar10": TransferSet(cifar.CIFAR10_LAYOUT, cifar.read_cifar10),
    "cifar100": TransferSet(cifar.CIFAR100_LAYOUT, cifar.read_cifar100),
    "sun397": TransferSet(text_lists.SUN_LAYOUT, text_lists.read_sun397),
    "cars": TransferSet(matlab_lists.CARS_LAYOUT, matlab_lists.read_cars),
    "aircraft": TransferSet(text_lists.AIRCRAFT_LAYOUT, text_lists.read_aircraft),
    "voc2007": TransferSet(voc2007.LAYOUT, voc2007.read_voc2007),
    "dtd": TransferSet(text_lists.DTD_LAYOUT, text_lists.read_dtd),
    "pets": TransferSet(text_lists.PETS_LAYOUT, text_lists.read_pets),
    "caltech101": TransferSet(text_lists.CALTECH_LAYOUT, text_lists.read_caltech101),
    "flowers": TransferSet(matlab_lists.FLOWERS_LAYOUT, matlab_lists.read_flowers),
}


def prepare_transfer_set(name: str, options: Options) -> bool:
    """Check the files, print the counts, write ``train.txt``, ``val.txt``, ``test.txt``.

    They lie in ``root/lists`` unless ``options.out`` says otherwise. VOC2007 gets lists of paths,
    and tables of labels beside them.

    Returns:
        Whether all counts agree with the published ones.

    Raises:
        FileNotFoundError: an official file is missing.
        ValueError: an unknown set, malformed official files, or existing lists differ.
    """
    if name not in TRANSFER_SETS:
        raise ValueError(f"the set must be one of {', '.join(TRANSFER_SETS)}, got {name!r}")
    out = options.out or options.root / "lists"
    official, tables = TRANSFER_SETS[name].read(options.root)
    located = locate_images(options.root, official.names())
    agrees = prepare(replace(official, kind="image"), located, replace(options, out=out))
    contents = {file_name: table.to_text() for file_name, table in tables.items()}
    for file_name, action in write_outputs(out, contents, force=options.force).items():
        print(f"{out / file_name}: {action}")
    return agrees
