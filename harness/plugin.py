"""pytest fixtures over pgshare; no logic of its own."""
