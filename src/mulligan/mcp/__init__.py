"""The MCP server: what Mulligan offers to agents over standard input and output.

::

    messages     JSON-RPC: lines in, lines out, errors
    versions     which revisions of the protocol are spoken, and how one is agreed on
    schemas      JSON schemas from msgspec structs
    project      the store and sessions of the directory that the server works for
    inputs       what tools take
    outputs      what tools return
    plans        restores that were previewed and may now be applied
    search       texts and paths in the history of a session
    tools        the tools, one function each
    resources    checkpoints, and files at a point
    lanes        threads that answer requests, so that reading never waits
    server       methods, cancellation, the loop
"""
