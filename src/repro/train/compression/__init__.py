"""Messages of training encoded: codecs, the ring that carries them, and where training passes."""
