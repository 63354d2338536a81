"""SCE, Similarity Contrastive Estimation, in plain PyTorch: dataset, views, loss and loop.

    python examples/sce_minimal.py VIDEOS sce.pth

VIDEOS is a folder of videos without labels. The command sce-video pretrain trains the same network,
and adds settings that fit the folder, several GPUs, checkpoints, alarms and an evaluation.

Use the result with sce_video.load_model("sce.pth", config="sce_r3d18_folder").
"""

import math
import sys

import torch
from torch import nn
from torch.nn.functional import normalize
from torch.utils.data import BatchSampler, DataLoader

from sce_video.datasets import ResumableSampler, VideoDataset, collate_views, transforms
from sce_video.models import MLP, ResNet3dSlowPath, VideoDataPreprocessor
from sce_video.models.losses import sce_loss
from sce_video.models.modules import KeyQueue, TargetEncoder


class SCE(nn.Module):
    """The online branch, the target branch and the queue of keys."""

    def __init__(self, width, queue_size):
        super().__init__()
        self.backbone = ResNet3dSlowPath(depth=18, base_channels=width, zero_init_residual=False)
        self.backbone.init_weights()
        self.projector = MLP(self.backbone.out_channels, 1024, 256, 3, norm_output=True)
        self.predictor = MLP(256, 1024, 256, 2, norm_output=False)
        self.target = TargetEncoder(self.backbone, self.projector)  # copies without gradient
        self.queue = KeyQueue(queue_size, 256)

    def forward(self, views):
        """Return the loss of two views (N, 3, T, H, W), each the query for the other one's key."""
        keys = [normalize(self.target(view)) for view in views]
        h = [self.backbone.pool(self.backbone(view)) for view in views]  # the representations
        queries = [normalize(self.predictor(self.projector(x))) for x in h]
        for key in keys:
            self.queue.stage(key)  # these keys enter the queue after the step
        pairs = zip(queries, reversed(keys), strict=True)
        return sum(sce_loss(query, key, self.queue.keys) for query, key in pairs) / 2


def train(videos, epochs=100, batch_size=32, seconds=2.56, frames=8, size=224, width=64, workers=4):
    """Train a ResNet3D-18 and return it with the loss of every step."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # Two random clips of a video, each with its own crop, as uint8 (T, H, W, 3).
    pipeline = [
        transforms.OpenVideo(),
        transforms.RandomClips(clip_duration=seconds, num_frames=frames, num_views=2),
        transforms.DecodeClips(),
        transforms.RandomResizedCropClips(size=size, area=(0.2, 0.766)),
        transforms.PackClips(),
    ]
    dataset = VideoDataset(videos, pipeline=pipeline)
    # The sampler draws a seed for each sample. An epoch repeats a small folder with different
    # views.
    sampler = ResumableSampler(dataset, seed=0, min_samples=20 * batch_size)
    batches = BatchSampler(sampler, batch_size, drop_last=True)
    loader = DataLoader(
        dataset, batch_sampler=batches, num_workers=workers, collate_fn=collate_views
    )
    # Colours and flips are drawn per view and applied to whole batches, on the GPU if there is one.
    views = [{"name": f"strong-{name}", "strength": 1.0} for name in ("alpha", "beta")]
    augmentation = VideoDataPreprocessor(views).to(device)
    # Use fewer keys than videos, because an old key of the same video would be a negative.
    model = SCE(width, queue_size=min(1024, max(1, len(dataset) // 2))).to(device)
    chance = math.log(len(model.queue.keys) + 1)  # the loss if queries and keys are unrelated
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
    steps, losses = epochs * len(loader), []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch in loader:
            falling = (1 + math.cos(math.pi * len(losses) / steps)) / 2  # from 1 to 0
            warm_up = min(1, (len(losses) + 1) / (0.05 * steps))
            optimizer.param_groups[0]["lr"] = 2e-3 * warm_up * falling
            loss = model(augmentation.prepare_views(batch, training=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            model.target.update(model.backbone, model.projector, momentum=1 - 0.03 * falling)
            model.queue.commit()
            losses.append(loss.item())
        mean = sum(losses[-len(loader) :]) / len(loader)
        print(f"epoch {epoch + 1} of {epochs}: loss {mean:.3f}, chance level {chance:.3f}")
    return model, losses


if __name__ == "__main__":
    model, _ = train(sys.argv[1])
    torch.save({"state_dict": model.state_dict()}, sys.argv[2])
