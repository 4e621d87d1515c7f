"""Tables of measurements, read with one description per column and one form of error."""
