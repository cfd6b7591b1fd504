"""The checks of `beyondcls doctor`, each in each state."""
