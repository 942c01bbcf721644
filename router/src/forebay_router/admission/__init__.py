"""Who waits, who goes first, and who is refused when workers have no room."""
