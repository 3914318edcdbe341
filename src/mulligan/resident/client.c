/* The client of the resident helper: client.py in C, for hooks that cost a millisecond.
 *
 * It reads a hook's JSON from standard input, sends it to the helper and prints the reply. When
 * there is no helper, it becomes the command that handles hooks by itself. DIRECTORY, VERSION,
 * COMMAND (a list of strings) are defined when it is compiled. It never fails: an agent must not be
 * disturbed by its hook. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>
#include <errno.h>

#define MAGIC "mulligan-hook-1"
#define SECONDS 20
/* The option of a command beside a call of the MCP server: do nothing if it handles the event. */
#define BESIDE_SERVER "--unless-served"
/* Options of the command after the helper took too long: the rest of the agent's patience. */
#define LATE "--budget", "8"
/* What Claude Code shows to the person when Mulligan itself cannot be run. */
#define GONE \
    "{\"systemMessage\":\"Mulligan records nothing: it was moved or removed. Install it again and " \
    "run `mulligan install claude`, or remove its hooks from your settings.\"}"

struct buffer {
    char *bytes;
    size_t size, room;
};

extern char **environ;

static int grow(struct buffer *buffer, size_t more) {
    if (buffer->size + more <= buffer->room) return 1;
    size_t room = (buffer->size + more) * 2 + 4096;
    char *bytes = realloc(buffer->bytes, room);
    if (!bytes) return 0;
    buffer->bytes = bytes;
    buffer->room = room;
    return 1;
}

static int add(struct buffer *buffer, const char *bytes, size_t size) {
    if (!grow(buffer, size)) return 0;
    memcpy(buffer->bytes + buffer->size, bytes, size);
    buffer->size += size;
    return 1;
}

/* With its zero byte, which ends a text in a request. */
static int add_text(struct buffer *buffer, const char *text) {
    return add(buffer, text, strlen(text) + 1);
}

static int read_all(int file, struct buffer *buffer) {
    for (;;) {
        if (!grow(buffer, 65536)) return 0;
        ssize_t got = read(file, buffer->bytes + buffer->size, 65536);
        if (got == 0) return 1;
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return 0;
        buffer->size += (size_t)got;
    }
}

static int write_all(int file, const char *bytes, size_t size, int is_socket) {
    while (size > 0) {
        /* Without a signal when the other end is gone. */
        ssize_t put = is_socket ? send(file, bytes, size, MSG_NOSIGNAL) : write(file, bytes, size);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return 0;
        bytes += put;
        size -= (size_t)put;
    }
    return 1;
}

static int is_sent(const char *variable) {
    static const char *const beginnings[] = {
        "HOME=", "PATH=", "XDG_STATE_HOME=", "MULLIGAN_", "CLAUDE_", "CODEX_", "GEMINI_",
        "OPENCODE_"};
    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++)
        if (!strncmp(variable, beginnings[i], strlen(beginnings[i]))) return 1;
    return 0;
}

static int request(struct buffer *head, char **words, const char *id) {
    if (!add_text(head, MAGIC) || !add_text(head, VERSION) || !add_text(head, id)) return 0;
    if (!add_text(head, words[0])) return 0;
    for (size_t i = 1; words[i]; i++)
        if ((i > 1 && !add(head, " ", 1)) || !add(head, words[i], strlen(words[i]))) return 0;
    if (!add_text(head, "")) return 0;
    for (char **variable = environ; *variable; variable++)
        if (is_sent(*variable) && !add_text(head, *variable)) return 0;
    return add_text(head, "");
}

static int connected(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "socket"};
    struct timeval limit = {.tv_sec = SECONDS};
    struct ucred peer;
    socklen_t length = sizeof peer;
    int file = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (file < 0) return -1;
    setsockopt(file, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(file, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    /* A relative path: an absolute one may be too long for the address of a socket. A socket of
     * another user gets nothing. */
    if (chdir(DIRECTORY) || connect(file, (struct sockaddr *)&address, sizeof address) ||
        getsockopt(file, SOL_SOCKET, SO_PEERCRED, &peer, &length) || peer.uid != geteuid()) {
        int reason = errno;
        close(file);
        errno = reason;
        return -1;
    }
    return file;
}

/* When a process started, as /proc has it, into a text of 24 bytes; "0" if that is unknown. */
static void find_start(const char *pid, char *start) {
    char name[48], stat[4096];
    snprintf(name, sizeof name, "/proc/%s/stat", pid);
    int file = open(name, O_RDONLY | O_CLOEXEC);
    ssize_t size = file < 0 ? -1 : read(file, stat, sizeof stat - 1);
    if (file >= 0) close(file);
    stat[size > 0 ? size : 0] = 0;
    /* The 20th word after the name of the program, which may hold spaces and parentheses. */
    char *word = strrchr(stat, ')');
    for (int i = 0; word && i < 20; i++) word = strchr(word + 1, ' ');
    snprintf(start, 24, "%.*s", word ? (int)strcspn(word + 1, " ") : 1, word ? word + 1 : "0");
}

/* Whether an MCP server handles the hooks of this agent: then it holds a lock. */
static int is_served(void) {
    const char *named = getenv("CLAUDE_PID");
    char pid[16], start[24], name[sizeof DIRECTORY + 64];
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    snprintf(pid, sizeof pid, "%d", (int)getppid());
    if (named && *named && strlen(named) < sizeof pid && !named[strspn(named, "0123456789")])
        strcpy(pid, named);
    find_start(pid, start);
    snprintf(name, sizeof name, "%s/served-%s-%s", DIRECTORY, pid, start);
    int file = open(name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) return 0;
    int is_held = !fcntl(file, F_GETLK, &lock) && lock.l_type != F_UNLCK;
    close(file);
    return is_held;
}

/* Take a word away from a list; return whether it was there. */
static int take_word(char **words, const char *word) {
    size_t kept = 0, i = 0;
    for (; words[i]; i++)
        if (strcmp(words[i], word)) words[kept++] = words[i];
    words[kept] = NULL;
    return kept < i;
}

enum outcome { HANDLED, NO_HELPER, TOO_LATE };

/* What the last failed call means: the time is up, or the helper is gone. */
static enum outcome failed(void) {
    return errno == EAGAIN || errno == EWOULDBLOCK ? TOO_LATE : NO_HELPER;
}

static enum outcome asked(char **words, const char *id, const struct buffer *data) {
    struct buffer head = {0}, reply = {0};
    int file = connected();
    if (file < 0) return failed();
    if (!request(&head, words, id)) return NO_HELPER;
    if (!write_all(file, head.bytes, head.size, 1) ||
        !write_all(file, data->bytes, data->size, 1) || shutdown(file, SHUT_WR) ||
        !read_all(file, &reply))
        return failed();
    if (reply.size == 0 || reply.bytes[0] != 'k') return NO_HELPER;
    write_all(1, reply.bytes + 1, reply.size - 1, 0);
    return HANDLED;
}

static int has(const struct buffer *data, const char *text) {
    return memmem(data->bytes, data->size, text, strlen(text)) != NULL;
}

static void fall_back(char **words, const char *id, const struct buffer *data, int is_late) {
    static const char *const command[] = {COMMAND}, *const late[] = {LATE};
    size_t count = sizeof command / sizeof *command, more = 0;
    size_t options = is_late ? sizeof late / sizeof *late : 0;
    while (words[more]) more++;
    char **arguments = calloc(count + more + options + 1, sizeof *arguments);
    if (!arguments) return;
    int file = memfd_create("hook", 0);
    if (file < 0 || !write_all(file, data->bytes, data->size, 0) || lseek(file, 0, SEEK_SET) ||
        dup2(file, 0))
        return;
    for (size_t i = 0; i < count; i++) arguments[i] = (char *)command[i];
    for (size_t i = 0; i < more; i++) arguments[count + i] = words[i];
    for (size_t i = 0; i < options; i++) arguments[count + more + i] = (char *)late[i];
    setenv("MULLIGAN_HOOK_ID", id, 1);
    execv(arguments[0], arguments);
    /* Mulligan was removed. The agent is not to be disturbed by that; the person is told, at the
     * events at which a person looks. */
    if (!strcmp(words[0], "claude") && (has(data, "\"SessionStart\"") ||
                                        has(data, "\"UserPromptSubmit\"")))
        write_all(1, GONE, sizeof GONE - 1, 0);
}

int main(int count, char **arguments) {
    char *claude[] = {"claude", NULL};
    char **words = count > 1 ? arguments + 1 : claude;
    unsigned char random[16];
    char id[33] = {0};
    struct buffer data = {0};
    int here = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (getrandom(random, sizeof random, 0) != sizeof random) return 0;
    for (int i = 0; i < 16; i++) snprintf(id + 2 * i, 3, "%02x", random[i]);
    int is_beside = take_word(words, BESIDE_SERVER);
    /* Read in any case: the agent takes a hook that closes its input early for one that failed. */
    if (!read_all(0, &data)) return 0;
    if (is_beside && is_served()) return 0;
    /* A helper that is late may be stopped, or end before it has recorded the event. If it is only
     * slow, the id says that the event is the same. */
    enum outcome outcome = asked(words, id, &data);
    if (outcome == HANDLED) return 0;
    if (here >= 0 && fchdir(here)) return 0;
    fall_back(words, id, &data, outcome == TOO_LATE);
    return 0;
}
