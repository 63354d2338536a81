"""Our recogniser and head compared with mmaction2's: weights, losses and scores."""

from __future__ import annotations

import pytest
import torch
from mmaction.models import I3DHead as TheirHead
from mmaction.models import Recognizer3D as TheirRecognizer
from mmaction.structures import ActionDataSample as TheirSample
from mmengine.registry import DefaultScope

from sce_video.models.recognizer import ActionDataSample, I3DHead, Recognizer3D
from sce_video.registry import MODELS

BACKBONE = dict(type="ResNet3dSlowPath", depth=18, base_channels=2)


@pytest.fixture
def pair():
    """Build two recognisers with the same weights, ours and mmaction2's."""

    def build(**head):
        head = dict(num_classes=7, in_channels=16, **head)
        with DefaultScope.overwrite_default_scope("sce_video"):
            torch.manual_seed(0)
            theirs = TheirRecognizer(BACKBONE, dict(type=TheirHead, **head))
            ours = Recognizer3D(
                BACKBONE, dict(type=I3DHead, **head), dict(type="BaseDataPreprocessor")
            )
        theirs.init_weights()
        ours.load_state_dict(theirs.state_dict())
        return ours.double(), theirs.double()

    return build


def clips(views):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(5, views, 3, 2, 32, 32, generator=generator, dtype=torch.float64)


def samples(kind):
    return [kind().set_gt_labels(torch.tensor([label])) for label in (0, 3, 6, 3, 1)]


@pytest.mark.parametrize("options", [{}, dict(dropout_ratio=0, label_smooth_eps=0.1, topk=(1, 2))])
def test_loss_and_gradients(pair, options):
    results = []
    for network, kind in zip(pair(**options), (ActionDataSample, TheirSample), strict=True):
        torch.manual_seed(2)  # of the dropout
        losses = network(clips(1), samples(kind), mode="loss")
        losses["loss_cls"].backward()
        gradients = [parameter.grad for parameter in network.parameters()]
        results.append(({k: v.item() for k, v in losses.items()}, gradients))
    (ours, our_gradients), (theirs, their_gradients) = results
    assert ours == pytest.approx(theirs, rel=1e-6)  # their smoothed labels are float32
    for one, other in zip(our_gradients, their_gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("average", ["prob", "score", None])
def test_scores_of_several_views(pair, average):
    rows = []
    for network, kind in zip(
        pair(average_clips=average), (ActionDataSample, TheirSample), strict=True
    ):
        network.eval()
        predicted = network(clips(3), samples(kind), mode="predict")
        rows.append([(one.pred_scores.item, one.pred_labels.item) for one in predicted])
        logits = network(clips(3), mode="tensor", stage="head")
        rows[-1].append((logits, network(clips(3))))
    for ours, theirs in zip(*rows, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_what_is_not_known_is_refused():
    with pytest.raises(ValueError, match="average_clips must be prob"):
        I3DHead(2, 4, average_clips="mean")
    with DefaultScope.overwrite_default_scope("sce_video"):
        network = Recognizer3D(BACKBONE, data_preprocessor=dict(type="BaseDataPreprocessor"))
    with pytest.raises(ValueError, match="mode must be"):
        network(clips(1).float(), mode="train")
    assert MODELS.get("Recognizer3D") is TheirRecognizer and MODELS.get("I3DHead") is TheirHead
