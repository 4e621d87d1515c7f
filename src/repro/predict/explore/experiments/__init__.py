"""The experiments of the testbed, predicted: at full scale, and the testbed itself."""
