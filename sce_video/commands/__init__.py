"""The commands: `sce-video NAME` and the files of the same name in `tools`."""
