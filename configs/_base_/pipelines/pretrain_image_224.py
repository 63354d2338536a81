# Pretraining on ImageNet: two random resized crops 224 (area 0.2 to 1, aspect 3/4 to 4/3; paper,
# appendix D.1). Evaluation: short side 256, central crop 224, resized as Pillow does.
train_pipeline = [
    dict(type="LoadImage", num_views=2, reduced=True),
    dict(type="RandomResizedCropClips", size=224, area=(0.2, 1.0)),
    dict(type="PackClips"),
]
evaluation_pipeline = [
    dict(type="LoadImage", num_views=1, resize="pil"),
    dict(type="ResizeShortSide", size=256),
    dict(type="CenterCropClips", size=224),
    dict(type="PackClips"),
]
