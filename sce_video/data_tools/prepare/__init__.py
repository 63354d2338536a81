"""Make annotation lists from the official downloads of video and image data sets.

``ucf101``, ``hmdb51``, ``kinetics``, ``ssv2``, ``diving48``, ``finegym``, ``ntu60``,
``epic_kitchens``, ``tiny_imagenet`` and ``imagenet`` read the official files and locate the videos
or images; ``prepare`` compares them with the disk and the published counts, and writes the lists.
``ava`` does the same for AVA, whose lists hold key frames with boxes. The command is
``sce-video prepare NAME ROOT``.
"""
