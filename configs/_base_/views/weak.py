# Two views, both weak (tab:augmentations): flip p 0.5 and nothing else.
# The distribution of ReSSL's target view.
data_preprocessor = dict(
    type="VideoDataPreprocessor",
    views=[
        dict(name="weak"),
        dict(name="weak"),
    ],
)
