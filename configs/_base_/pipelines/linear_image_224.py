# Linear evaluation on 224x224 images: a random crop of 8 % to 100 % of the area, resized to 224,
# flip p 0.5 (appendix D.1). Tested on the central 224x224 of the image whose short side was
# resized to 256 as Pillow does (the authors' code, juliendenize/eztorch; the paper writes 256x256).
train_pipeline = [
    dict(type="LoadImage", num_views=1, reduced=True),
    dict(type="RandomResizedCropClips", size=224, area=(0.08, 1.0)),
    dict(type="PackClips"),
]
test_pipeline = [
    dict(type="LoadImage", num_views=1, resize="pil"),
    dict(type="ResizeShortSide", size=256),
    dict(type="CenterCropClips", size=224),
    dict(type="PackClips"),
]
