"""Heads: projectors and predictors, attentive probes, and classifiers of boxes."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from itertools import product
from typing import Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor, nn

from sce_video.models.backbones.common import init_info_to_file, map_tokens
from sce_video.models.modules import roi_align
from sce_video.models.recognizer import sample_labels
from sce_video.registry import MODELS
from sce_video.utils.stored_arguments import Features, Layers, Outputs, Stored, Switch


@MODELS.register_module()
class MLP(BaseModule):
    """Linear layers with ReLU between them, and with optional BN.

    A hidden layer consists of a linear layer, BN (if ``norm_hidden``) and ReLU. The last layer is
    linear, followed by BN (if ``norm_output``). The defaults follow SCE and MoCo v3: no biases, BN
    in the hidden layers, and an output BN without affine parameters. The methods use the following
    heads:

    ====================== ================================ ====================================
    method, sizes          arguments                        source
    ====================== ================================ ====================================
    SCE, projector         3 layers, ``norm_output=True``   paper, tables
    (video, ImageNet)                                       tab:specific-hyper-pretrain-video and
                                                            tab:specifc-hyper-pretrain
    SCE, predictor         2 layers, ``norm_output=False``  the same tables
    SCE on CIFAR, STL10,   2 layers, ``norm_output=False,   paper, tab:specifc-hyper-pretrain;
    Tiny-IN, 512-512-128   bias_output=True``               biases: juliendenize/eztorch
    SCE on ImageNet100,    as MoCo v2                       the same table
    2048-4096-256
    MoCo v2,               2 layers, ``norm_output=False,   arXiv 2003.04297; facebookresearch/moco
    2048-2048-128          norm_hidden=False, bias=True``   moco/builder.py
    ReSSL, 2048-4096-512   as MoCo v2                       KyleZheng1997/ReSSL
    MoCo v3, projector,    2 layers, ``norm_output=True``   facebookresearch/moco-v3
    2048-4096-256                                           moco/builder.py (ResNet)
    MoCo v3, predictor,    2 layers, ``norm_output=False``  the same file
    256-4096-256
    BYOL, both heads,      2 layers, ``norm_output=False,   arXiv 2006.07733; lightly-ai/lightly
    2048 or 256-4096-256   bias_output=True``               lightly/models/modules/heads.py
    SimCLR, 2048-2048-128  2 layers, ``norm_output=True,    arXiv 2002.05709; lightly-ai/lightly
                           affine_output=True``             lightly/models/modules/heads.py
    SwAV, 2048-2048-128    2 layers, ``norm_output=False,   facebookresearch/swav
                           bias=True``                      src/resnet50.py
    LeJEPA,                3 layers, ``norm_output=False,   arXiv 2511.08544; rbalestr-lab/lejepa
    512-2048-2048-16       bias=True``                      MINIMAL.md
    Distill, ``frames``    no layers, ``norm_output=True,   docs/results.md, "Real footage"
                           affine_output=True``
    ====================== ================================ ====================================

    ``affine_output`` gives the output BN a learned scale and shift. ``bias_output`` gives the last
    linear layer a bias, and None means the value of ``bias``. ``init_cfg`` is mmengine's
    initialisation config. SlowFast's heads use ``dict(type="Caffe2Xavier", layer="Linear")``
    (slowfast/utils/weight_init_helper.py).
    """

    _dump_init_info = init_info_to_file

    def __init__(
        self,
        in_channels: Features,
        hidden_channels: Features,
        out_channels: Outputs,
        num_layers: Annotated[int, Stored(32)],
        norm_output: Switch,
        *,
        bias: Switch = False,
        norm_hidden: Switch = True,
        affine_output: Switch = False,
        bias_output: Switch | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(init_cfg=init_cfg)
        sizes = {
            "in_channels": in_channels,
            "hidden_channels": hidden_channels,
            "out_channels": out_channels,
            "num_layers": num_layers,
        }
        for name, value in sizes.items():
            least = 0 if name == "num_layers" else 1
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if affine_output and not norm_output:
            raise ValueError("affine_output=True needs an output BN. Set norm_output=True too")
        self.in_channels = in_channels
        self.out_channels = out_channels
        layers: list[nn.Module] = []
        if num_layers == 0 and not (norm_output and in_channels == out_channels):
            raise ValueError(
                "num_layers=0 leaves only the output BN. Set norm_output=True, and out_channels "
                f"to the {in_channels} of the input, got {out_channels}"
            )
        for _ in range(num_layers - 1):
            layers.append(nn.Linear(in_channels, hidden_channels, bias=bias))
            if norm_hidden:
                layers.append(nn.BatchNorm1d(hidden_channels))
            layers.append(nn.ReLU(inplace=True))
            in_channels = hidden_channels
        last_bias = bias if bias_output is None else bias_output
        if num_layers:
            layers.append(nn.Linear(in_channels, out_channels, bias=last_bias))
        if norm_output:
            layers.append(nn.BatchNorm1d(out_channels, affine=affine_output))
        self.layers = nn.Sequential(*layers)

    def forward(self, h: Tensor) -> Tensor:
        """Map (N, in_channels) to embeddings (N, out_channels), which are not l2-normalised."""
        return self.layers(h)


_EPS = 1e-5


class GridPoint(NamedTuple):
    """Learning rate and weight decay of one probe."""

    lr: float
    weight_decay: float

    @property
    def name(self) -> str:
        """Name of the point in metrics, for example ``lr0.001_wd0.01``."""
        return f"lr{self.lr:g}_wd{self.weight_decay:g}"


def attend(tokens: Tensor, keys: Tensor) -> Tensor:
    """Average tokens with the weights softmax(tokens @ keys).

    Args:
        tokens: (N, L, C), which are first standardised over C.
        keys: (Q, C).

    Returns:
        Means (N, Q, C) of the standardised tokens.
    """
    tokens = F.layer_norm(tokens, tokens.shape[-1:], eps=_EPS)
    weights = (tokens @ keys.T).transpose(1, 2).softmax(dim=-1)
    return weights.to(tokens.dtype) @ tokens


class AttentiveProbe(nn.Module):
    """Cross-attention from one learned query to the tokens, an MLP, and a linear classifier.

    It computes the same function as the attentive classifier of V-JEPA 2 (facebookresearch/vjepa2,
    src/models/attentive_pooler.py), but in a different order. The query is multiplied with the key
    weights first, and the values are computed from weighted means of the tokens. No token is
    projected, so a probe of depth 1 with H heads needs 2 L C H products per clip instead of 2 L
    C^2. Terms that are equal for all tokens cancel in the softmax and are left out.
    :class:`AttentiveProbeHead` describes the arguments.
    """

    def __init__(
        self, channels: int, num_classes: int, num_heads: int, depth: int, mlp_ratio: int
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        blocks = [
            nn.TransformerEncoderLayer(
                channels,
                num_heads,
                dim_feedforward=4 * channels,
                dropout=0.0,
                activation="gelu",
                layer_norm_eps=_EPS,
                batch_first=True,
                norm_first=True,
            )
            for _ in range(depth - 1)
        ]
        self.blocks = nn.Sequential(*blocks)
        self.query = nn.Parameter(torch.empty(channels))
        self.norm = nn.LayerNorm(channels)  # keys and classify use only its weight and bias
        self.to_query = nn.Linear(channels, channels)
        self.to_key = nn.Linear(channels, channels, bias=False)
        self.to_value = nn.Linear(channels, channels)
        self.mlp = None
        if mlp_ratio:
            self.mlp = nn.Sequential(
                nn.LayerNorm(channels, eps=_EPS),
                nn.Linear(channels, mlp_ratio * channels),
                nn.GELU(),
                nn.Linear(mlp_ratio * channels, channels),
            )
        self.fc_cls = nn.Linear(channels, num_classes)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw weights and query from a truncated normal distribution with deviation 0.02.

        Biases are 0, and norms are the identity. The last linear layer before a shortcut's sum is
        divided by ``sqrt(2 i)`` in block i, and in the cross-attention as in the block before it.
        The classifier has torch's default initialisation.
        """
        nn.init.trunc_normal_(self.query, std=0.02)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2 and not name.startswith("fc_cls"):
                nn.init.trunc_normal_(parameter, std=0.02)
            elif name.endswith("bias") and not name.startswith("fc_cls"):
                nn.init.zeros_(parameter)
        for i in range(len(self.blocks)):
            for name in ("self_attn.out_proj", "linear2"):
                self.get_parameter(f"blocks.{i}.{name}.weight").div_(math.sqrt(2 * (i + 1)))
        if self.mlp is not None:
            divisor = math.sqrt(2 * max(1, len(self.blocks)))
            self.get_parameter("mlp.3.weight").div_(divisor)

    def keys(self) -> Tensor:
        """Return keys (H, C). Their products with standardised tokens enter the softmax."""
        query = self.to_query(self.query).unflatten(0, (self.num_heads, -1))
        weight = self.to_key.weight.unflatten(0, (self.num_heads, -1))  # (H, C/H, C)
        scale = math.sqrt(query.shape[1])
        return torch.einsum("hd,hdc->hc", query, weight) * self.norm.weight / scale

    def classify(self, pooled: Tensor) -> Tensor:
        """Return the logits (N, K) of the means (N, H, C) that :func:`attend` returns."""
        weight = self.to_value.weight.unflatten(0, (self.num_heads, -1))
        values = torch.einsum("nhc,hdc->nhd", pooled * self.norm.weight + self.norm.bias, weight)
        x = self.query + values.flatten(1) + self.to_value.bias
        if self.mlp is not None:
            x = x + self.mlp(x)
        return self.fc_cls(x)


@MODELS.register_module()
class AttentiveProbeHead(nn.Module):
    """Attentive probes of one frozen backbone, one for each learning rate and weight decay.

    The loss is the sum of the probes' losses. Each probe has its own parameter group
    (:class:`~sce_video.engine.optimizers.ProbeGridConstructor`), and all start from the same
    weights, so training is equivalent to separate runs. The tokens are the positions of the
    backbone's features. If an encoder has a class token, use ``pool="mean"``, which provides only
    the patch tokens.

    Source: facebookresearch/vjepa2, evals/video_classification_frozen/eval.py and configs/eval
    (depth 4, 16 heads, 20 points); facebookresearch/jepa, configs/evals (depth 1, one point).

    Args:
        num_classes: Number of classes, K. If it is None in a config, ``sce-video train`` counts the
            classes of the training data.
        in_channels: Number of channels C of the features, a multiple of ``num_heads``. If it is
            None in a config, it is taken from the backbone.
        lrs: Learning rates. The grid combines each of them with each weight decay.
        weight_decays: Weight decays, each for all parameters of a probe.
        num_heads: Number of attention heads.
        depth: Number of blocks of a probe: ``depth - 1`` blocks of self-attention, and the
            cross-attention.
        mlp_ratio: Width of the MLP after the cross-attention, relative to C. 0 means no MLP.
        selected: Index of the probe that classifies, where the weight decays of the first learning
            rate come first. None means the only probe, or the one that a test selects.

    Raises:
        ValueError: If a size is out of range, or if the grid is empty or contains a point twice.
    """

    def __init__(
        self,
        num_classes: Outputs | None,
        in_channels: Features | None,
        lrs: Sequence[float],
        weight_decays: Sequence[float] = (0.0,),
        num_heads: Annotated[int, Stored(256)] = 16,
        depth: Layers = 1,
        mlp_ratio: Annotated[int, Stored(64, least=0)] = 4,
        selected: int | None = None,
    ) -> None:
        super().__init__()
        num_classes = num_classes or 0
        in_channels = in_channels or 0
        wrong = ""
        if num_classes < 2:
            wrong = f"a classifier needs two classes or more, got num_classes={num_classes}"
        elif num_heads < 1 or in_channels < 1 or in_channels % num_heads:
            channels = f"the {in_channels} channels of the backbone"
            wrong = f"num_heads must divide {channels}, got {num_heads}"
        elif depth < 1 or mlp_ratio < 0:
            wrong = f"depth must be at least 1 and mlp_ratio 0, got {depth} and {mlp_ratio}"
        if wrong:
            raise ValueError(wrong)
        grid = _checked_grid(lrs, weight_decays)
        self.num_classes = num_classes
        self.in_channels = in_channels
        self.depth = depth
        # Register the grid as a buffer, so that a checkpoint records the settings of its training.
        self.register_buffer("points", torch.tensor(grid, dtype=torch.float64))
        first = AttentiveProbe(in_channels, num_classes, num_heads, depth, mlp_ratio)
        self.probes = nn.ModuleList(copy.deepcopy(first) for _ in grid)
        self.select(0 if selected is None and len(grid) == 1 else selected)

    @property
    def grid(self) -> list[GridPoint]:
        """The points of the grid, in the order of the probes."""
        points: Any = self.points
        return [GridPoint(*values) for values in points.tolist()]

    def select(self, index: int | None) -> None:
        """Select the probe that classifies. None selects no probe.

        Raises:
            ValueError: If there is no probe with this index.
        """
        if index is not None and not 0 <= index < len(self.probes):
            raise ValueError(
                f"selected must be the index of one of {len(self.probes)} grid points, got {index}"
            )
        self.selected = index

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return one parameter group per probe, with its learning rate and weight decay."""
        return [
            {"params": list(probe.parameters()), **point._asdict()}
            for probe, point in zip(self.probes, self.grid, strict=True)
        ]

    def forward(self, features: Tensor, loss_aux: dict | None = None) -> Tensor:
        """Return the logits of all probes, or of the selected one in evaluation mode.

        Args:
            features: (N, C, ...) of a frozen backbone.
            loss_aux: Argument of mmaction2, which is not used here.

        Returns:
            Logits (N, G, K) of all G probes, or (N, K) of one probe.

        Raises:
            ValueError: If the features have a gradient.
        """
        # Gradients would train the backbone on the sum of all probes' losses.
        if features.requires_grad:
            raise ValueError(
                "an attentive probe needs a frozen backbone, but this one has gradients. "
                "Set model.backbone.frozen_stages=4"
            )
        tokens = map_tokens(features)
        one = None if self.training else self.selected
        probes: list[Any] = list(self.probes) if one is None else [self.probes[one]]
        if self.depth > 1:
            pooled = [attend(probe.blocks(tokens), probe.keys()) for probe in probes]
        else:  # all probes use the same tokens, so read them in a single product
            keys = torch.cat([probe.keys() for probe in probes])
            pooled = list(attend(tokens, keys).chunk(len(probes), dim=1))
        logits = [probe.classify(x) for probe, x in zip(probes, pooled, strict=True)]
        return torch.stack(logits, dim=1) if one is None else logits[0]

    def loss(
        self, features: Tensor, data_samples: Sequence[Any], loss_aux: dict | None = None
    ) -> dict[str, Tensor]:
        """Compute the sum of the probes' losses, and the smallest and largest of them.

        Args:
            features: (N, C, ...) of a frozen backbone.
            data_samples: N ``ActionDataSample`` of mmaction2, with a label.
            loss_aux: Argument of mmaction2, which is not used here.

        Returns:
            ``loss``, ``ce_min`` and ``ce_max``.
        """
        logits = self(features)
        labels = sample_labels(data_samples, logits.device)
        # If one probe diverges, the sum becomes NaN, but the other probes' gradients stay valid.
        losses = torch.stack([F.cross_entropy(one, labels) for one in logits.unbind(dim=1)])
        values = losses.detach()
        return {"loss": losses.sum(), "ce_min": values.min(), "ce_max": values.max()}


def _checked_grid(lrs: Sequence[float], weight_decays: Sequence[float]) -> list[GridPoint]:
    """Combine learning rates and weight decays, and check the points of the grid."""
    grid = [GridPoint(float(lr), float(decay)) for lr, decay in product(lrs, weight_decays)]
    if not grid:
        raise ValueError(
            "the grid is empty. lrs and weight_decays of the attentive probe need at least one "
            f"value each, got lrs={list(lrs)} and weight_decays={list(weight_decays)}"
        )
    for lr, decay in grid:
        if not (0 < lr < math.inf and 0 <= decay < math.inf):
            raise ValueError(
                "learning rates must be above 0 and weight decays 0 or more, got "
                f"lr={lr:g}, weight_decay={decay:g}"
            )
    names = [point.name for point in grid]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"the grid contains points twice: {', '.join(twice)}")
    return grid


@MODELS.register_module()
class RoIActionHead(nn.Module):
    """Mean over time, RoIAlign, maximum over space, dropout, and one linear layer.

    Source: facebookresearch/SlowFast, slowfast/models/head_helper.py.

    Args:
        in_channels: Channels of the backbone's features.
        num_classes: Number of actions.
        roi_size: Side of the grid to which a box is sampled.
        stride: Pixels of the frame per feature cell. It is 16 if the last stage has stride 1.
        dropout_ratio: Share of the channels that is dropped in training.
    """

    def __init__(
        self,
        in_channels: Features,
        num_classes: Outputs = 80,
        roi_size: int = 7,
        stride: int = 16,
        dropout_ratio: float = 0.5,
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.roi_size = roi_size
        self.stride = stride
        self.dropout = nn.Dropout(dropout_ratio)
        self.fc_cls = nn.Linear(in_channels, num_classes)
        nn.init.normal_(self.fc_cls.weight, std=0.01)
        nn.init.zeros_(self.fc_cls.bias)

    def forward(self, features: Tensor, boxes: list[Tensor]) -> Tensor:
        """Return the logits (sum of n_i, number of classes) of all boxes.

        Args:
            features: (N, C, T, H, W).
            boxes: N tensors (n_i, 4) of x1, y1, x2, y2 in pixels of the clip.
        """
        maps = features.mean(dim=2)
        rois = torch.cat([F.pad(own, (1, 0), value=i) for i, own in enumerate(boxes)])
        grid = roi_align(maps, rois, self.roi_size, 1 / self.stride)
        return self.fc_cls(self.dropout(grid.amax(dim=(2, 3))))
