"""Weights as other code bases publish them: names and shapes, from the definitions of networks."""

from __future__ import annotations

from collections.abc import Callable

import torch

from sce_video.registry import MODELS

BLOCKS = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}
NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
#: Names of the parts of a residual block: (convolution, its BN) by number, shortcut and its BN.
TORCHVISION = (lambda i: (f"conv{i}", f"bn{i}"), ("downsample.0", "downsample.1"))
DETECTRON2 = (lambda i: (f"conv{i}", f"conv{i}.norm"), ("shortcut", "shortcut.norm"))


def names_and_shapes(
    depth: int, width: int, stem: str, stages: Callable[[int], str], parts: tuple, kernel: int = 7
) -> dict[str, tuple[int, ...]]:
    """Entries of a ResNet's state dict, block by block, as another code base names them."""
    shapes: dict[str, tuple[int, ...]] = {}

    def add(conv: str, norm: str, size: tuple[int, ...]) -> None:
        shapes[f"{conv}.weight"] = size
        for entry in NORM:
            shapes[f"{norm}.{entry}"] = () if entry == "num_batches_tracked" else size[:1]

    of_block, of_shortcut = parts
    add(*(f"{stem}{name}" for name in of_block(1)), (width, 3, kernel, kernel))
    before = width
    for stage, count in enumerate(BLOCKS[depth]):
        inner, out = width * 2**stage, width * 2**stage * (4 if depth == 50 else 1)
        for block in range(count):
            where = f"{stages(stage + 1)}.{block}."
            sizes = [(inner, before, 3, 3), (inner, inner, 3, 3)]
            if depth == 50:
                sizes = [(inner, before, 1, 1), (inner, inner, 3, 3), (out, inner, 1, 1)]
            for number, size in enumerate(sizes, 1):
                add(*(where + name for name in of_block(number)), size)
            if before != out:
                add(*(where + name for name in of_shortcut), (out, before, 1, 1))
            before = out
    return shapes


def torchvision_names(depth: int, width: int = 8, kernel: int = 7) -> dict[str, tuple[int, ...]]:
    return names_and_shapes(depth, width, "", lambda s: f"layer{s}", TORCHVISION, kernel)


def randomised(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.tensor(7) if not shape else torch.rand(shape, generator=generator)
        for name, shape in shapes.items()
    }


def authors_names(depth: int = 50, kernel: int = 7) -> dict[str, tuple[int, ...]]:
    """State dict of eztorch's ``SCEModel``: two trunks, three heads of ``layers``, the queue."""
    trunk = torchvision_names(depth, kernel=kernel)
    wide = 8 * 8 * (4 if depth == 50 else 1)

    def head(prefix: str, sizes: tuple[int, ...], last_norm: bool) -> dict[str, tuple[int, ...]]:
        shapes, index = {}, 0
        for number in range(len(sizes) - 1):
            out, last = sizes[number + 1], number == len(sizes) - 2
            shapes[f"{prefix}.layers.{index}.weight"] = (out, sizes[number])
            if not last or last_norm:  # the last BN has no affine parameters
                entries = NORM[2:] if last else NORM
                for entry in entries:
                    size = () if entry == "num_batches_tracked" else (out,)
                    shapes[f"{prefix}.layers.{index + 1}.{entry}"] = size
            index += 3  # linear, BN, ReLU
        return shapes

    return {
        **{f"trunk.{name}": shape for name, shape in trunk.items()},
        **head("projector", (wide, 16, 16, 6), True),
        **head("predictor", (6, 16, 6), False),
        **{f"momentum_trunk.{name}": shape for name, shape in trunk.items()},
        **head("momentum_projector", (wide, 16, 16, 6), True),
        "queue": (6, 12),
        "queue_ptr": (1,),
    }


def slowfast_shapes(width: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a SlowFast network ``ARCH: slow`` of depth 50, without its head.

    From slowfast/models/resnet_helper.py, stem_helper.py.
    """
    shapes: dict[str, tuple[int, ...]] = {}

    def add(conv: str, norm: str, size: tuple[int, ...]) -> None:
        shapes[f"{conv}.weight"] = size
        shapes.update({f"{norm}.{n}": () if "tracked" in n else size[:1] for n in NORM})

    add("s1.pathway0_stem.conv", "s1.pathway0_stem.bn", (width, 3, 1, 7, 7))
    before = width
    for stage, count in enumerate(BLOCKS[50], start=2):
        inner = width * 2 ** (stage - 2)
        out, t = inner * 4, 3 if stage >= 4 else 1
        for block in range(count):
            here = f"s{stage}.pathway0_res{block}."
            kernels = {"a": (inner, before, t, 1, 1), "b": (inner, inner, 1, 3, 3)}
            kernels["c"] = (out, inner, 1, 1, 1)
            for letter, size in kernels.items():
                add(f"{here}branch2.{letter}", f"{here}branch2.{letter}_bn", size)
            if before != out:
                add(f"{here}branch1", f"{here}branch1_bn", (out, before, 1, 1, 1))
            before = out
    return shapes


#: Our network, the name of torchvision's, and the parts of its head.
NETWORKS = {
    "r2plus1d_18": (dict(type="R2Plus1d", depth=18, base_channels=8), "fc"),
    "s3d": (dict(type="S3D", base_channels=8), "classifier.1"),
    "resnet50": (dict(type="ResNet2d", depth=50, base_channels=8), "fc"),
}


def network(name: str) -> torch.nn.Module:
    """A network with random weights and BN statistics."""
    torch.manual_seed(0)
    model = MODELS.build(NETWORKS[name][0]).eval()
    for key, value in model.state_dict().items():
        if key.endswith("running_var"):
            value.uniform_(0.5, 1.5)
        elif key.endswith("running_mean"):
            value.normal_(0, 0.2)
        elif key.endswith("num_batches_tracked"):
            value.fill_(7)
    return model


def torchvision_file(name: str) -> dict[str, torch.Tensor]:
    """Its state dict with a head: the names of the body are tested in tests/models/backbones."""
    head = NETWORKS[name][1]
    model = network(name)
    extra = {f"{head}.weight": torch.ones(400, model.out_channels), f"{head}.bias": torch.ones(400)}
    return {**model.state_dict(), **extra}
