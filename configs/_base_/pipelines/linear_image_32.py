# Linear evaluation on 32x32 images (CIFAR): a black border of 4 pixels, a random crop of 32,
# flip p 0.5 (the authors' older code, juliendenize/SCE; the sentence in appendix D.1 mixes this
# crop with a resized one). The test uses the image without changes.
train_pipeline = [
    dict(type="LoadImage", num_views=1),
    dict(type="RandomCropClips", size=32, padding=4),
    dict(type="PackClips"),
]
test_pipeline = [
    dict(type="LoadImage", num_views=1),
    dict(type="PackClips"),
]
