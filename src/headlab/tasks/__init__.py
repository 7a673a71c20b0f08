"""Tasks: where examples come from."""
