"""Feature sets between machines: receipts, pull and upload."""
