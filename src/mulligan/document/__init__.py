"""The session's document: values and paths, the persistent document, its events and history."""
