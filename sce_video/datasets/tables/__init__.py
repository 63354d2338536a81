"""Tables of videos (Lance): one row per video, of which only the needed frames are read."""
