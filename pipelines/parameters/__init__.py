"""What a user asks for: params.yaml, their own configuration, and the options of commands."""
