"""Transcripts: what each coding agent writes of a conversation, read, cut and written."""
