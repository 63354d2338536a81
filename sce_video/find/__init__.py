"""Find videos and segments: an index, queries by example, the search page."""
