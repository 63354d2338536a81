"""Pages and figures: data to HTML."""
