"""What rewards teach, measured on within-group data."""
