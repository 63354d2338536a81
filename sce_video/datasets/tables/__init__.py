"""Tables of videos (Lance): one row per video. Only the needed frames of a row are read."""
