"""Making a table of videos: see ``sce-video import`` and docs/tables.md."""
