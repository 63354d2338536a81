"""Values and gradients of the baselines' losses compared with lightly and solo-learn.

The values were recorded with lightly 1.6.0 and solo-learn 1.0.2 (MoCo v3: its repository at commit
43ce4a6, in a process group of one), for inputs in closed form.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sce_video.models.losses import (
    byol_loss,
    info_nce_loss,
    moco_v3_loss,
    nt_xent_loss,
    ressl_loss,
    sigreg_loss,
    sinkhorn,
    swav_loss,
)

N, D, K, C = 4, 6, 12, 5  # numbers of samples, dimensions, queue entries and prototypes


def closed_form(rows, columns, phase):
    """Return inputs that are not normalised, because the libraries' losses normalise them."""
    grid = np.arange(rows)[:, None] * 1.7 + np.arange(columns)[None] * 0.9 + phase
    return torch.from_numpy(np.cos(grid) + 0.3 * np.sin(grid * grid))


def inputs(form):
    """Return the tensor that receives a gradient, and all other inputs."""
    first, second, queue = form(N, D, 0.0), form(N, D, 0.2), F.normalize(form(K, D, 2.5), dim=1)
    scores = [0.3 * form(N, C, 1.1 * view + 0.7) for view in range(3)]
    directions = F.normalize(form(7, D, 4.0), dim=1)
    return first.requires_grad_(), second, queue, scores, directions


def normal(x):
    return F.normalize(x, dim=1)


def swav(first, scores, queued):
    """Return two assigned views, the first a function of ``first``, and one that only predicts."""
    scores = [0.3 * first[:, :C] + scores[0], *scores[1:]]
    rows = [torch.cat([score, *queued]) for score in scores[:2]]
    return swav_loss(scores, [*(sinkhorn(row)[:N] for row in rows), None], tau=0.1)


def lejepa(first, second, directions):
    """Compute the loss of the method for two global views and a local one, with lambda 0.05."""
    z = torch.stack([first, second, 0.5 * second + 0.1])
    prediction = (z - z[:2].mean(dim=0)).square().mean()
    options = dict(t_max=3.0, num_points=33)
    sigreg = torch.stack([sigreg_loss(view, directions, **options) for view in z]).mean()
    return 0.95 * prediction + 0.05 * sigreg


OURS = {
    "SimCLR": lambda a, b, q, s, d: nt_xent_loss(normal(a), normal(b), tau=0.1),
    "MoCo": lambda a, b, q, s, d: info_nce_loss(normal(a), normal(b), q, tau=0.2),
    "MoCo v3": lambda a, b, q, s, d: moco_v3_loss(
        normal(a), normal(b), torch.arange(len(a)), tau=0.2
    ),
    "ReSSL": lambda a, b, q, s, d: ressl_loss(normal(a), normal(b), q, tau=0.1, tau_m=0.04),
    "BYOL": lambda a, b, q, s, d: byol_loss(normal(a), normal(b)),
    "SwAV": lambda a, b, q, s, d: swav(a, s, []),
    "SwAV, queue": lambda a, b, q, s, d: swav(a, s, [q[:, :C]]),
    "LeJEPA": lambda a, b, q, s, d: lejepa(a, b, d),
}


def value_and_gradient(loss, form):
    tensors = inputs(form)
    value = loss(*tensors)
    value.backward()
    return value.item(), tensors[0].grad


#: Value, norm of the gradient, and gradient of the first sample
RECORDED = {
    "SimCLR": (0.02654287, 0.11187052,
        [-0.00770994, 0.03233049, 0.06878131, 0.035499, -0.0327247, -0.05002188]),
    "MoCo": (1.34196788, 0.36755984,
        [-0.05447234, -0.01224667, 0.16795997, -0.09097104, -0.06179427, 0.00440169]),
    "MoCo v3": (0.03465286, 0.05705037,
        [-0.00549269, 0.01646461, 0.03668997, 0.01958746, -0.01927152, -0.01442504]),
    "ReSSL": (1.01030979, 0.76369631,
        [-0.04223236, 0.17190487, 0.24207712, 0.0492287, -0.00386302, -0.12770513]),
    "BYOL": (0.20199130, 0.24197401,
        [-0.01024364, 0.0091641, 0.07306439, 0.01949466, -0.04109573, 0.02200506]),
    "SwAV": (3.70893704, 0.38969721,
        [0.17477503, 0.01003836, -0.00131606, -0.01126877, -0.17222856, 0.0]),
    "SwAV, queue": (3.69437902, 0.37528670,
        [0.17445395, 0.01050089, -1.865e-05, -0.00192856, -0.18300762, 0.0]),
    "LeJEPA": (0.09536092, 0.05281390,
        [0.0091427, 0.01065682, 0.00525345, -0.00729086, -0.01570954, -0.00357142]),
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDED)
def test_equals_the_recorded_values(name):
    value, gradient = value_and_gradient(OURS[name], closed_form)
    recorded, norm, first = RECORDED[name]
    assert value == pytest.approx(recorded, abs=1e-6)
    assert gradient.norm().item() == pytest.approx(norm, abs=1e-6)
    assert gradient[0].tolist() == pytest.approx(first, abs=1e-6)
