"""What people read: text, tables, diffs, progress; and the streams it goes to."""
