"""Compute the feature or the best classes of a video by an exported network, without torch.

sce-video export RUN --to onnx --out model.onnx
python examples/onnx_features.py model.onnx VIDEO
"""

import json
import sys

import av
import cv2
import numpy as np
import onnxruntime


def read_clip(path, clip_duration, num_frames, short_side, crop_size, **_):
    """Return the central squares (T, S, S, 3) uint8 of T frames in the middle of a video."""
    with av.open(path) as file:
        frames = [(frame.time, frame.to_ndarray(format="rgb24")) for frame in file.decode(video=0)]
    times = np.array([time - frames[0][0] for time, _ in frames])
    length = times[-1] * len(times) / max(1, len(times) - 1)  # includes the last frame's duration
    start = max(0.0, (length - (clip_duration or length)) / 2)
    end = start + (clip_duration or length)
    first, stop = np.searchsorted(times, [start - 1e-6, end - 1e-6])
    steps = np.arange(num_frames) * (max(1, stop - first) - 1) // max(1, num_frames - 1)
    height, width = frames[0][1].shape[:2]
    scale = [side * short_side // min(height, width) for side in (width, height)]
    left, top = (round((side - crop_size) / 2) for side in scale)
    clip = np.stack([cv2.resize(frames[i][1], scale) for i in min(first, len(times) - 1) + steps])
    return clip[:, top : top + crop_size, left : left + crop_size]


model, video = sys.argv[1:]
session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
config = json.loads(session.get_modelmeta().custom_metadata_map["sce_video"])
clips = read_clip(video, **config["model"])[None]  # (N, T, H, W, 3), normalised by the network
feature, *probabilities = (rows[0] for rows in session.run(None, {"clips": clips}))
if probabilities:
    names = config["classifier"]["classes"] or list(range(len(probabilities[0])))
    for i in np.argsort(-probabilities[0])[:5]:
        print(f"{probabilities[0][i]:.4f} {names[i]}")
else:
    print(json.dumps(feature.tolist()))
