"""Published results, to compare with our own: a file for each table or figure."""
