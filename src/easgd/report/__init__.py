"""Records into figures, tables and a page."""
