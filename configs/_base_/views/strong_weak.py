# Two views, strong (online, in the image study) and weak (target), as printed in tab:augmentations.
data_preprocessor = dict(
    type="VideoDataPreprocessor",
    views=[
        dict(name="strong", strength=0.5),
        dict(name="weak"),
    ],
)
