"""Wiki markup to plain paragraphs."""
