"""Published results, for reference beside our own: a file for each table or figure."""
