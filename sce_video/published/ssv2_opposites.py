"""Pairs of opposite actions of Something-Something v2, by the names of its classes.

Names are those of the 174 templates of the data set (Goyal et al. 2017, arXiv 1706.04261), without
brackets, as in open-mmlab/mmaction2, ``tools/data/sthv2/label_map.txt``. Two classes are a pair
here if a video of the one, played backwards, shows what the template of the other says: objects
and places are the same, the order in time is not. The choice is this project's, read from the texts
alone. Left out are pairs that gravity or a hand makes different backwards ("Pouring something into
something" and "out of something"), and classes that only pretend.
"""

from __future__ import annotations

OPPOSITES: tuple[tuple[str, str], ...] = (
    (
        "Approaching something with your camera",
        "Moving away from something with your camera",
    ),
    ("Burying something in something", "Digging something out of something"),
    ("Closing something", "Opening something"),
    ("Covering something with something", "Uncovering something"),
    ("Folding something", "Unfolding something"),
    (
        "Moving something and something away from each other",
        "Moving something and something closer to each other",
    ),
    ("Moving something away from something", "Moving something closer to something"),
    ("Moving something away from the camera", "Moving something towards the camera"),
    ("Moving something down", "Moving something up"),
    ("Picking something up", "Putting something on a surface"),
    ("Pulling something from behind of something", "Putting something behind something"),
    ("Pulling something from left to right", "Pulling something from right to left"),
    ("Pushing something from left to right", "Pushing something from right to left"),
    ("Pushing something off of something", "Pushing something onto something"),
    ("Putting something into something", "Taking something out of something"),
    (
        "Turning the camera downwards while filming something",
        "Turning the camera upwards while filming something",
    ),
    (
        "Turning the camera left while filming something",
        "Turning the camera right while filming something",
    ),
)
