# Linear evaluation on 64x64 images (Tiny-ImageNet): a random crop of 8 % to 100 % of the area,
# resized to 64, flip p 0.5 (appendix D.1). The test uses the image without changes.
train_pipeline = [
    dict(type="LoadImage", num_views=1),
    dict(type="RandomResizedCropClips", size=64, area=(0.08, 1.0)),
    dict(type="PackClips"),
]
test_pipeline = [
    dict(type="LoadImage", num_views=1),
    dict(type="PackClips"),
]
