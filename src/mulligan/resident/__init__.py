"""The resident helper: a process that handles hooks with stores open and watchers warm.

A hook of a coding agent is a process. Started afresh, it imports, opens the store and scans the
files each time. With the helper it is a client of a few kilobytes that sends the event over a unix
socket and prints the reply. Without the helper everything works the same, only slower.

::

    place        the helper's directory: socket, lock, client
    messages     what a client sends and gets
    server       the helper itself: one by lock, ends when idle or of another version
    start        starting it, detached from the agent that happened to be first
    client.py    the client for ``python -I -S``: imports nothing of Mulligan
    client.c     the same in C, compiled where a compiler is at hand
    install      writing the client, with the paths that it needs
    serving      which agents have an MCP server that handles their hooks instead
"""
