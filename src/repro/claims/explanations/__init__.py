"""What would have to hold for claims that do not come out."""
