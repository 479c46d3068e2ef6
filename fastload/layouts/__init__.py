"""Layouts: a directory tree of files -> samples, splits, attachments."""
