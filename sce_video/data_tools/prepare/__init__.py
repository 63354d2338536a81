"""Make annotation lists from the official downloads of video and image data sets.

``actions``, ``cut_clips``, ``kinetics``, ``imagenet`` and ``transfer_sets`` read the official files
and locate the videos or images; ``lists`` compares them with the disk and the published counts, and
writes the lists. ``ava`` does the same for AVA, whose lists hold key frames with boxes. The command
is ``sce-video prepare NAME ROOT``.
"""
