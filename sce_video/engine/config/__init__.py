"""Configs, which are read, changed, checked, stored in checkpoints and compared.

The modules build on each other in this order. ``changes`` addresses places in a config,
``inheritance`` reads a file and its bases, ``check`` refuses keys and types that nothing reads,
``load`` applies the options of a command line, ``snapshot`` stores a config as data, and
``differences`` compares two stored configs.
"""
