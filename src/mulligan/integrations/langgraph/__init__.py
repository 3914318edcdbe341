"""LangGraph: ``MulliganSaver`` keeps the checkpoints of graphs, ``resume_input`` continues them.

``layout.py`` says where a thread of a graph lies in its session.
"""

from mulligan.integrations.langgraph.resume import (
    aresume_input,
    atasks_in_doubt,
    resume_input,
    tasks_in_doubt,
)
from mulligan.integrations.missing_extra import framework

with framework("langgraph", "langgraph.checkpoint.base"):
    from mulligan.integrations.langgraph.saver import MulliganSaver

__all__ = [
    "MulliganSaver",
    "aresume_input",
    "atasks_in_doubt",
    "resume_input",
    "tasks_in_doubt",
]
