# Two views, strong-alpha and strong-beta, colour strength 0.5: as printed in tab:augmentations, the
# baseline of the video ablations. See strong_alpha.py and strong_beta.py for the numbers.
data_preprocessor = dict(
    type="VideoDataPreprocessor",
    views=[
        dict(name="strong-alpha", strength=0.5),
        dict(name="strong-beta", strength=0.5),
    ],
)
