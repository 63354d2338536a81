# Linear evaluation on 96x96 images (STL10): a random crop of 8 % to 100 % of the area, resized
# to 96, flip p 0.5 (appendix D.1). The test uses the image without changes.
train_pipeline = [
    dict(type="LoadImage", num_views=1),
    dict(type="RandomResizedCropClips", size=96, area=(0.08, 1.0)),
    dict(type="PackClips"),
]
test_pipeline = [
    dict(type="LoadImage", num_views=1),
    dict(type="PackClips"),
]
