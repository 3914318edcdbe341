"""The transcript formats of the coding agents whose conversations are understood."""

from __future__ import annotations

from collections.abc import Mapping

from mulligan.coding.claude_folder import ClaudeFormat
from mulligan.coding.codex_transcript import CodexFormat
from mulligan.coding.hook_input import CLAUDE, CODEX
from mulligan.coding.transcript_format import TranscriptFormat

FORMATS: Mapping[str, TranscriptFormat] = {CLAUDE: ClaudeFormat(), CODEX: CodexFormat()}
"""The formats by the names of their agents."""
