"""A local page that searches and labels the videos of an index, see :func:`serve.serve`.

``app`` answers requests, ``guard`` decides which, ``state`` holds the index and searches it,
``workers`` decodes in other processes, ``media`` makes the small pictures, ``label_list`` keeps the
labels that are given by hand.
"""
