"""What a model is told about the server as a whole."""

INSTRUCTIONS = """\
Mulligan keeps files, conversation and state of this project on one timeline, so that any earlier \
moment can be read, compared and brought back.

- Before something risky (a large refactoring, a migration, deleting files), call `checkpoint` \
with a note. It is cheap. When tests pass, `mark` the latest checkpoint as good.
- To see what happened: `log`, `diff` (from a point to now), `read_file` (a file at a point), \
`search_history` (a text, or which checkpoints changed a path).
- To go back: `plan_restore` first, read what it would change, then `restore` with its plan_id. \
If anything changed in between, restore is refused: plan again. `undo` takes a restore back. \
Nothing is lost by a restore: the present is kept in a safety checkpoint.
- To try something without touching the present: `fork` with a directory.
- A restore does not take back acts on the outside world; `effects` lists them.

A point is a checkpoint's id, a label, @latest, @latest~1, @good, #SEQ, or a time ('10m ago')."""
