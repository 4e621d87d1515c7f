"""What theory says: volumes and times of training steps, at any scale."""
