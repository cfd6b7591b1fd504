"""The data and encoders of the quickstart: how they were made, with one command each."""
