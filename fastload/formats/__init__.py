"""Formats: one file's bytes <-> arrays. Pure functions; nothing here knows directories, LMDB or torch."""
