"""What a whole project costs, as its parameter file describes it: measured on samples, then counted."""
