"""What the outside sees: every JSON shape of docs/cli-json.md, built once.

The command line prints these views, and a server or an MCP server can send them. A view is a plain
dictionary made of public objects by a function ``<noun>_view``; the modules are named after their
nouns. Times stay ``datetime`` and values of the state stay as they are until
:func:`mulligan.views.encoding.to_json` writes a view. Nothing here prints, asks, or reads the
environment; ``tests/unit/views`` holds that.
"""
