/* Loaded with LD_PRELOAD into the process under test: counts every call that changes what is on disk under one folder, or
 * that speaks over a TCP connection this process opened, and at a chosen one kills the process or lets the call fail.
 *
 * What is watched: files under the folder given to shim_watch (by path, or by what the descriptor points to), and AF_INET
 * sockets on which this process called connect. Not watched: UNIX sockets, pipes, accepted connections, other folders.
 * Until shim_arm every call passes untouched. Our own calls go straight to the kernel, so that they count nothing.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum mode { COUNT, KILL_BEFORE, KILL_AFTER, NOSPACE_ONCE, NOSPACE, IO_ONCE, SHORT_ONCE, STOP };
enum family { WRITE, SYNC, CREATE, MOVE, REMOVE, NET };
enum verdict { PASS, FAIL, SHORTEN, THEN_DIE };

#define DESCRIPTORS 65536
#define POINTS 200000
#define NAME 48

static char folder[PATH_MAX], report[PATH_MAX];
static size_t folder_length;
static atomic_int armed, mode, is_full;
static atomic_long target, counted, struck;
static atomic_uchar connected[DESCRIPTORS];
static atomic_int is_sparse;             /* count a call only if a kill before it leaves something new */
static atomic_int is_changed;            /* something durable, or what peers know, since the last counted call */
static atomic_uchar database[DESCRIPTORS]; /* connections on which PostgreSQL answers */
static atomic_uchar has_written[DESCRIPTORS]; /* in the transaction that is open there */
static char pattern[64]; /* what the target is one of, as the beginning of "kind name"; empty = of all */
static atomic_long matched;
static struct { char kind[12]; char name[NAME]; } points[POINTS];

#define REAL(name) ({ static __typeof__(&name) real_; if (!real_) real_ = (__typeof__(&name))dlsym(RTLD_NEXT, #name); real_; })

/* -- what the test calls through ctypes ------------------------------------------------------------------------------ */

void shim_watch(const char *path, const char *report_to) {
    snprintf(folder, sizeof folder, "%s", path);
    folder_length = strlen(folder);
    snprintf(report, sizeof report, "%s", report_to);
}

/* The call number *at* fails, of those alone whose "kind name" begins with *of*. */
void shim_arm(int new_mode, long at, const char *of) {
    atomic_store(&armed, 0);
    snprintf(pattern, sizeof pattern, "%s", of);
    atomic_store(&matched, 0);
    atomic_store(&mode, new_mode);
    atomic_store(&target, at);
    atomic_store(&counted, 0);
    atomic_store(&struck, 0);
    atomic_store(&is_full, 0);
    atomic_store(&is_changed, 1);
    atomic_store(&armed, 1);
}

/* From now on only those calls are counted before which a kill leaves another state than before the last counted one.
 * fsync changes nothing that a kill takes away; SQLite's log means nothing before the fsync of its commit; statements to
 * PostgreSQL mean nothing before the answer that ends a transaction, which is counted as "commit", killed behind it. */
void shim_count_states(void) { atomic_store(&is_sparse, 1); }

void shim_disarm(void) { atomic_store(&armed, 0); atomic_store(&is_full, 0); }
long shim_counted(void) { return atomic_load(&counted); }
long shim_struck(void) { return atomic_load(&struck); }

/* Copies point *n* (from 1) as "kind name"; the caller gives room for 64 bytes. */
void shim_point(long n, char *into) {
    into[0] = 0;
    if (n > 0 && n <= POINTS) snprintf(into, 64, "%s %s", points[n - 1].kind, points[n - 1].name);
}

/* -- deciding --------------------------------------------------------------------------------------------------------- */

static int is_inside(const char *path) {
    return folder_length && !strncmp(path, folder, folder_length) && (path[folder_length] == '/' || !path[folder_length]);
}

static int path_of_descriptor(int fd, char *into) {
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long n = syscall(SYS_readlinkat, AT_FDCWD, link, into, PATH_MAX - 1);
    if (n < 0) return 0;
    into[n] = 0;
    return 1;
}

static int absolute(int dir, const char *path, char *into) {
    char base[PATH_MAX];
    if (!path || !atomic_load(&armed)) return 0;
    if (path[0] == '/') { snprintf(into, PATH_MAX, "%s", path); return is_inside(into); }
    if (dir == AT_FDCWD) { if (syscall(SYS_getcwd, base, sizeof base) < 0) return 0; }
    else if (!path_of_descriptor(dir, base)) return 0;
    if (strlen(base) + strlen(path) + 2 > PATH_MAX) return 0;
    strcat(strcpy(into, base), "/");
    strcat(into, path);
    return is_inside(into);
}

static void tell(long n, const char *kind, const char *name) {
    char line[160];
    int length = snprintf(line, sizeof line, "%ld %s %s\n", n, kind, name);
    long fd = syscall(SYS_openat, AT_FDCWD, report, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0) return;
    syscall(SYS_write, fd, line, length);
    syscall(SYS_close, fd);
}

static void die(void) {
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;) syscall(SYS_pause);
}

static enum verdict fails(enum family family, const char *kind, int net_error) {
    atomic_fetch_add(&struck, 1);
    errno = family == NET ? net_error : atomic_load(&mode) == IO_ONCE ? EIO : ENOSPC;
    (void)kind;
    return FAIL;
}

/* Return whether call number *n* is the one that was chosen. */
static int is_target(long n, const char *kind, const char *name) {
    char point[64];
    if (!pattern[0]) return n == atomic_load(&target);
    snprintf(point, sizeof point, "%.12s %.48s", kind, name);
    if (strncmp(point, pattern, strlen(pattern))) return 0;
    return atomic_fetch_add(&matched, 1) + 1 == atomic_load(&target);
}

/* Return whether a kill before this call leaves nothing new; note what the call itself changes. */
static int is_same_state(enum family family, const char *kind, const char *name) {
    int is_sync = family == SYNC;
    int is_log = !strcmp(name, "journal.db-wal") || !strcmp(name, "journal.db");
    int was_changed = is_sync && is_log ? (atomic_store(&is_changed, 0), 1) : atomic_exchange(&is_changed, 0);
    int is_silent = is_sync || !strcmp(kind, "connect") || (is_log && family == WRITE && strcmp(kind, "truncate"));
    if (!is_silent && strcmp(kind, "commit")) atomic_store(&is_changed, 1);
    return !was_changed;
}

/* Count one call; say what becomes of it. errno is set when it FAILs. */
static enum verdict judge(enum family family, const char *kind, const char *name) {
    if (atomic_load(&is_sparse) && is_same_state(family, kind, name)) return PASS;
    int now = atomic_load(&mode);
    long n = atomic_fetch_add(&counted, 1) + 1;
    int net_error = strcmp(kind, "connect") ? ECONNRESET : ECONNREFUSED;
    if (n <= POINTS) {
        snprintf(points[n - 1].kind, sizeof points[0].kind, "%s", kind);
        snprintf(points[n - 1].name, NAME, "%.*s", NAME - 1, name);
    }
    if (now == NOSPACE && atomic_load(&is_full)) /* a full disk refuses what needs room; the rest goes on */
        return family == WRITE || family == CREATE ? fails(family, kind, 0) : PASS;
    if (now == STOP) { /* every time, until the test lets it go on */
        syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGSTOP); /* this thread stops before it returns */
        return PASS;
    }
    if (now == COUNT || !is_target(n, kind, name)) return PASS;
    tell(n, kind, name);
    switch (now) {
    case KILL_BEFORE: die(); return PASS;
    case KILL_AFTER: return THEN_DIE;
    case SHORT_ONCE: atomic_fetch_add(&struck, 1); return SHORTEN;
    case NOSPACE:
        atomic_store(&is_full, 1);
        if (family == NET || family == REMOVE) return PASS; /* needs no room: the next write is the first to fail */
        return fails(family, kind, net_error);
    case NOSPACE_ONCE:
        if (family == REMOVE) return PASS; /* freeing needs no room */
        return fails(family, kind, net_error);
    default: return fails(family, kind, net_error);
    }
}

static const char *base_of(const char *path) { const char *slash = strrchr(path, '/'); return slash ? slash + 1 : path; }

static enum verdict on_descriptor(enum family family, const char *kind, int fd) {
    char path[PATH_MAX];
    int saved = errno;
    if (!atomic_load(&armed) || fd < 0 || fd >= DESCRIPTORS) return PASS;
    if (atomic_load(&connected[fd])) {
        struct sockaddr_in peer = {0};
        socklen_t length = sizeof peer;
        char name[NAME] = "?";
        if (atomic_load(&is_sparse) && atomic_load(&database[fd])) return PASS;
        if (!syscall(SYS_getpeername, fd, &peer, &length)) snprintf(name, sizeof name, ":%d", ntohs(peer.sin_port));
        errno = saved;
        return judge(NET, "send", name);
    }
    if (!path_of_descriptor(fd, path) || !is_inside(path)) { errno = saved; return PASS; }
    errno = saved;
    return judge(family, kind, base_of(path));
}

static enum verdict on_path(enum family family, const char *kind, int dir, const char *path) {
    char full[PATH_MAX];
    int saved = errno;
    int inside = absolute(dir, path, full);
    errno = saved;
    return inside ? judge(family, kind, base_of(full)) : PASS;
}

/* What is there already is not made anew: such a call changes nothing on disk. */
static enum verdict on_new(const char *kind, int dir, const char *path) {
    struct stat seen;
    if (!atomic_load(&armed)) return PASS;
    int saved = errno;
    long missing = syscall(SYS_newfstatat, dir, path, &seen, 0);
    errno = saved;
    return missing ? on_path(CREATE, kind, dir, path) : PASS;
}
static enum verdict on_open(int dir, const char *path, int flags) {
    return flags & O_CREAT ? on_new("create", dir, path) : PASS;
}

/* -- the calls -------------------------------------------------------------------------------------------------------- */

#define PASSED(type, decision, call) \
    do { enum verdict v_ = (decision); if (v_ == FAIL) return -1; type r_ = (call); if (v_ == THEN_DIE) die(); return r_; } while (0)
#define PASSED_BYTES(decision, count, call_all, call_half) \
    do { enum verdict v_ = (decision); if (v_ == FAIL) return -1; \
         if (v_ == SHORTEN && (count) > 1) return (call_half); \
         ssize_t r_ = (call_all); if (v_ == THEN_DIE) die(); return r_; } while (0)

ssize_t write(int fd, const void *data, size_t n) {
    PASSED_BYTES(on_descriptor(WRITE, "write", fd), n, REAL(write)(fd, data, n), REAL(write)(fd, data, n / 2));
}
ssize_t pwrite(int fd, const void *data, size_t n, off_t at) {
    PASSED_BYTES(on_descriptor(WRITE, "write", fd), n, REAL(pwrite)(fd, data, n, at), REAL(pwrite)(fd, data, n / 2, at));
}
ssize_t pwrite64(int fd, const void *data, size_t n, off64_t at) {
    PASSED_BYTES(on_descriptor(WRITE, "write", fd), n, REAL(pwrite64)(fd, data, n, at), REAL(pwrite64)(fd, data, n / 2, at));
}
ssize_t writev(int fd, const struct iovec *parts, int n) {
    PASSED_BYTES(on_descriptor(WRITE, "write", fd), n, REAL(writev)(fd, parts, n), REAL(writev)(fd, parts, n / 2));
}
int fsync(int fd) { PASSED(int, on_descriptor(SYNC, "fsync", fd), REAL(fsync)(fd)); }
int fdatasync(int fd) { PASSED(int, on_descriptor(SYNC, "fsync", fd), REAL(fdatasync)(fd)); }
static enum family resizing(int fd, off64_t n) { /* only what grows needs room */
    struct stat seen;
    int saved = errno;
    long unknown = syscall(SYS_newfstatat, fd, "", &seen, AT_EMPTY_PATH);
    errno = saved;
    return !unknown && n <= seen.st_size ? REMOVE : WRITE;
}
int ftruncate(int fd, off_t n) { PASSED(int, on_descriptor(resizing(fd, n), "truncate", fd), REAL(ftruncate)(fd, n)); }
int ftruncate64(int fd, off64_t n) {
    PASSED(int, on_descriptor(resizing(fd, n), "truncate", fd), REAL(ftruncate64)(fd, n));
}
int posix_fallocate64(int fd, off64_t at, off64_t n) {
    enum verdict v = on_descriptor(WRITE, "allocate", fd);
    if (v == FAIL) return errno;
    int r = REAL(posix_fallocate64)(fd, at, n);
    if (v == THEN_DIE) die();
    return r;
}

int rename(const char *from, const char *to) { PASSED(int, on_path(MOVE, "rename", AT_FDCWD, to), REAL(rename)(from, to)); }
int renameat(int a, const char *from, int b, const char *to) {
    PASSED(int, on_path(MOVE, "rename", b, to), REAL(renameat)(a, from, b, to));
}
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) {
    PASSED(int, on_path(MOVE, "rename", b, to), REAL(renameat2)(a, from, b, to, flags));
}
int link(const char *from, const char *to) { PASSED(int, on_path(CREATE, "link", AT_FDCWD, to), REAL(link)(from, to)); }
int linkat(int a, const char *from, int b, const char *to, int flags) {
    PASSED(int, on_path(CREATE, "link", b, to), REAL(linkat)(a, from, b, to, flags));
}
int symlink(const char *target_path, const char *at) { PASSED(int, on_path(CREATE, "link", AT_FDCWD, at), REAL(symlink)(target_path, at)); }
int unlink(const char *path) { PASSED(int, on_path(REMOVE, "unlink", AT_FDCWD, path), REAL(unlink)(path)); }
int unlinkat(int dir, const char *path, int flags) { PASSED(int, on_path(REMOVE, "unlink", dir, path), REAL(unlinkat)(dir, path, flags)); }
int mkdir(const char *path, mode_t rights) { PASSED(int, on_new("mkdir", AT_FDCWD, path), REAL(mkdir)(path, rights)); }
int mkdirat(int dir, const char *path, mode_t rights) { PASSED(int, on_new("mkdir", dir, path), REAL(mkdirat)(dir, path, rights)); }

#define RIGHTS(flags) \
    mode_t rights = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); rights = va_arg(rest, mode_t); va_end(rest); }

int open(const char *path, int flags, ...) {
    RIGHTS(flags)
    PASSED(int, on_open(AT_FDCWD, path, flags), REAL(open)(path, flags, rights));
}
int open64(const char *path, int flags, ...) {
    RIGHTS(flags)
    PASSED(int, on_open(AT_FDCWD, path, flags), REAL(open64)(path, flags, rights));
}
int openat(int dir, const char *path, int flags, ...) {
    RIGHTS(flags)
    PASSED(int, on_open(dir, path, flags), REAL(openat)(dir, path, flags, rights));
}
int openat64(int dir, const char *path, int flags, ...) {
    RIGHTS(flags)
    PASSED(int, on_open(dir, path, flags), REAL(openat64)(dir, path, flags, rights));
}

int connect(int fd, const struct sockaddr *to, socklen_t length) {
    enum verdict v = PASS;
    if (to && to->sa_family == AF_INET && fd >= 0 && fd < DESCRIPTORS) {
        atomic_store(&connected[fd], 1);
        if (atomic_load(&armed)) {
            char name[NAME];
            snprintf(name, sizeof name, ":%d", ntohs(((const struct sockaddr_in *)to)->sin_port));
            v = judge(NET, "connect", name);
        }
    }
    if (v == FAIL) return -1;
    int r = REAL(connect)(fd, to, length);
    if (v == THEN_DIE) die();
    return r;
}
int close(int fd) {
    if (fd >= 0 && fd < DESCRIPTORS) { atomic_store(&connected[fd], 0); atomic_store(&database[fd], 0); atomic_store(&has_written[fd], 0); }
    return REAL(close)(fd);
}
ssize_t send(int fd, const void *data, size_t n, int flags) {
    PASSED_BYTES(on_descriptor(NET, "send", fd), n, REAL(send)(fd, data, n, flags), REAL(send)(fd, data, n / 2, flags));
}
ssize_t sendto(int fd, const void *data, size_t n, int flags, const struct sockaddr *to, socklen_t length) {
    PASSED_BYTES(on_descriptor(NET, "send", fd), n, REAL(sendto)(fd, data, n, flags, to, length),
                 REAL(sendto)(fd, data, n / 2, flags, to, length));
}
ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    PASSED(ssize_t, on_descriptor(NET, "send", fd), REAL(sendmsg)(fd, message, flags));
}

/* Return whether an answer of PostgreSQL has the tag of a statement that changed something: "UPDATE 2", not "UPDATE 0". */
static int has_changed(const unsigned char *data, ssize_t n) {
    static const char *const counted_tags[] = {"INSERT 0 ", "UPDATE ", "DELETE ", "MERGE ", "COPY "};
    static const char *const other_tags[] = {"VACUUM", "CREATE ", "ALTER ", "DROP ", "TRUNCATE "};
    for (ssize_t at = 0; at + 6 < n; at++) {
        const char *tag = (const char *)data + at + 5;
        ssize_t left = n - at - 5;
        if (data[at] != 'C' || data[at + 1] || data[at + 2] || data[at + 3]) continue;
        for (size_t k = 0; k < sizeof counted_tags / sizeof *counted_tags; k++) {
            ssize_t length = strlen(counted_tags[k]);
            if (left > length && !memcmp(tag, counted_tags[k], length) && tag[length] != '0') return 1;
        }
        for (size_t k = 0; k < sizeof other_tags / sizeof *other_tags; k++)
            if (left > (ssize_t)strlen(other_tags[k]) && !memcmp(tag, other_tags[k], strlen(other_tags[k]))) return 1;
    }
    return 0;
}

ssize_t recv(int fd, void *data, size_t room, int flags) {
    ssize_t n = REAL(recv)(fd, data, room, flags);
    int saved = errno;
    if (n < 6 || fd < 0 || fd >= DESCRIPTORS || !atomic_load(&connected[fd])) return n;
    if (has_changed(data, n)) atomic_store(&has_written[fd], 1);
    /* "Ready, in no transaction": what was written is there for good. A kill now is a kill behind the commit. */
    if (!memcmp((const char *)data + n - 6, "Z\0\0\0\5I", 6)) {
        atomic_store(&database[fd], 1);
        if (atomic_exchange(&has_written[fd], 0) && atomic_load(&armed) && atomic_load(&is_sparse)) {
            atomic_store(&is_changed, 1);
            judge(NET, "commit", "of the database");
        }
    }
    errno = saved;
    return n;
}
