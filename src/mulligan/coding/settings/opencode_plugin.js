// Records every prompt and tool call of opencode with Mulligan. Written by `mulligan install opencode`;
// `mulligan uninstall opencode` removes it. It never disturbs opencode: what fails is a line in Mulligan's log.
import { spawn } from "node:child_process"
import { chmodSync, mkdirSync, renameSync, writeFileSync } from "node:fs"
import { homedir } from "node:os"
import { join } from "node:path"

const COMMAND = /* command */ []
const STATE = process.env.XDG_STATE_HOME || join(homedir(), ".local", "state")
const TRANSCRIPTS = join(STATE, "mulligan", "opencode")
const TIMEOUT_MS = 30000

function run(fields) {
  return new Promise((done) => {
    let reply = ""
    const variables = { ...process.env, CLAUDE_PID: String(process.pid) }
    const child = spawn(COMMAND[0], COMMAND.slice(1), { env: variables, stdio: ["pipe", "pipe", "ignore"] })
    const timer = setTimeout(() => child.kill("SIGKILL"), TIMEOUT_MS)
    child.on("error", () => done(null))
    child.on("close", () => {
      clearTimeout(timer)
      try {
        done(reply ? JSON.parse(reply) : null)
      } catch {
        done(null)
      }
    })
    child.stdin.on("error", () => {})
    child.stdout.on("data", (data) => (reply += data))
    child.stdin.end(JSON.stringify(fields))
  })
}

export const Mulligan = async ({ client, directory }) => {
  const parents = new Map() // the session above a subagent's
  const started = new Set()
  let last = Promise.resolve()

  const root = (id) => (parents.has(id) ? root(parents.get(id)) : id)
  const path = (id) => join(TRANSCRIPTS, `${id}.jsonl`)

  // One at a time, in the order in which things happened.
  const queued = (work) => (last = last.then(work, work))

  const send = async (name, id, fields) => {
    const top = root(id)
    const own = id === top ? {} : { agent_id: id, agent_transcript_path: path(id) }
    const base = { hook_event_name: name, session_id: top, cwd: directory, transcript_path: path(top) }
    return await run({ ...base, ...own, ...fields })
  }

  const begin = async (id) => {
    if (started.has(id) || id !== root(id)) return
    started.add(id)
    await send("SessionStart", id, { source: "startup" })
  }

  // opencode keeps its messages in a database of its own, so the conversation is written out.
  const transcribe = async (id) => {
    try {
      const found = await client.session.messages({ path: { id } })
      mkdirSync(TRANSCRIPTS, { recursive: true, mode: 0o700 })
      const lines = (found.data ?? []).map((message) => JSON.stringify(message) + "\n")
      const temporary = `${path(id)}.${process.pid}.new`
      writeFileSync(temporary, lines.join(""), { mode: 0o600 })
      chmodSync(temporary, 0o600)
      renameSync(temporary, path(id))
    } catch {
      // The session may be gone; what was written before stays.
    }
  }

  const returned = (id, fields) =>
    queued(async () => {
      await transcribe(id)
      await send("PostToolUse", id, fields)
    })

  return {
    "chat.message": async ({ sessionID }, { message, parts }) => {
      const prompt = parts.map((part) => part.text ?? "").join("\n")
      await queued(async () => {
        await begin(sessionID)
        if (sessionID === root(sessionID)) await transcribe(sessionID)
        if (sessionID === root(sessionID)) await send("UserPromptSubmit", sessionID, { prompt, prompt_id: message.id })
      })
    },
    "tool.execute.before": async ({ tool, sessionID, callID }, { args }) => {
      const fields = { tool_name: tool, tool_input: args, tool_use_id: callID }
      const reply = await queued(() => send("PreToolUse", sessionID, fields))
      const said = reply?.hookSpecificOutput
      if (said?.permissionDecision === "deny") throw new Error(said.permissionDecisionReason)
    },
    "tool.execute.after": async ({ tool, sessionID, callID, args }, { output }) => {
      await returned(sessionID, { tool_name: tool, tool_input: args, tool_use_id: callID, tool_response: output })
    },
    "experimental.session.compacting": async ({ sessionID }) => {
      await queued(async () => {
        await transcribe(sessionID)
        await send("PreCompact", sessionID, { trigger: "auto" })
      })
    },
    event: async ({ event }) => {
      const { type, properties } = event
      if (type === "session.created" && properties.info?.parentID) {
        parents.set(properties.info.id, properties.info.parentID)
      }
      const part = type === "message.part.updated" ? properties.part : undefined
      if (part?.type === "tool" && part.state?.status === "error") {
        const { tool, callID, sessionID, state } = part
        await returned(sessionID, { tool_name: tool, tool_input: state.input, tool_use_id: callID, error: state.error })
      }
      if (type === "session.idle" && properties.sessionID === root(properties.sessionID)) {
        const id = properties.sessionID
        await queued(async () => {
          await transcribe(id)
          await send("Stop", id, {})
        })
      }
    },
    dispose: async () => {
      await queued(async () => {
        for (const id of started) await send("SessionEnd", id, { reason: "exit" })
        started.clear()
      })
    },
  }
}
