"""The transcript formats of the coding agents whose conversations are understood."""

from __future__ import annotations

from collections.abc import Mapping

from mulligan.coding.hook_input import CLAUDE, CODEX, GEMINI, OPENCODE
from mulligan.coding.transcripts.claude_folder import ClaudeFormat
from mulligan.coding.transcripts.codex_transcript import CodexFormat
from mulligan.coding.transcripts.gemini_transcript import GeminiFormat
from mulligan.coding.transcripts.opencode_transcript import OpenCodeFormat
from mulligan.coding.transcripts.transcript_format import TranscriptFormat

FORMATS: Mapping[str, TranscriptFormat] = {
    CLAUDE: ClaudeFormat(),
    CODEX: CodexFormat(),
    GEMINI: GeminiFormat(),
    OPENCODE: OpenCodeFormat(),
}
"""The formats by the names of their agents."""
