"""Published claims and the verdicts of predictions and measurements on them."""
