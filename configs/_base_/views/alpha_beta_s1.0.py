# Two views, strong-alpha and strong-beta, colour strength 1.0: the best video setting
# (tab:video-best): jitter 0.8, 0.8, 0.4, 0.2 with p 0.8, everything else as in alpha_beta_s0.5.py.
# The runner passes this top-level data_preprocessor to a model that has none of its own.
data_preprocessor = dict(
    type="VideoDataPreprocessor",
    views=[
        dict(name="strong-alpha", strength=1.0),
        dict(name="strong-beta", strength=1.0),
    ],
)
