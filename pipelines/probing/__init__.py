"""What `beyondcls probe` does: heads trained by this process, or runs that an engine spreads over machines."""
