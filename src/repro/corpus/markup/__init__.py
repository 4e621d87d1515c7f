"""Conversion of wiki markup to plain paragraphs."""
