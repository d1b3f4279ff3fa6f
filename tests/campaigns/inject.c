/* Makes calls of the file system fail, below Python: built by faults.py, loaded by LD_PRELOAD.

   INJECT_STATE   a file that is shared with the one who asks: `struct state`. A process without it is
                  left alone; one that gets it, after a fork too, begins to count.
   INJECT_FOLDER  only calls on paths below it, or on files opened there, are counted and fail.
   INJECT_FAULT   CLASS:NUMBER:KIND:LASTING, or nothing to count only. CLASS is a name of `names`, NUMBER
                  counts its calls from 0, KIND is a name of errno, `short` (reads and writes end early),
                  `late` (the name changes after a while, and the call waits for it) or `lost` (the
                  call is done, and says EIO). LASTING = 1: every later call of the class fails, too; ENOSPC
                  then ends every call that needs space. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN, CREATE, READ, WRITE, RENAME, SYNC, STAT, MAKE, CLOSE, REMOVE, LIST, MAP, LOCK, CLASSES };
static const char *names[] = {"open", "create", "read", "write", "rename", "sync", "stat",
                              "make", "close", "remove", "list", "map", "lock"};
static const int needs_space = 1 << CREATE | 1 << WRITE | 1 << RENAME | 1 << SYNC | 1 << MAKE | 1 << CLOSE;

struct state {
  long counts[CLASSES]; /* calls so far */
  long injected;        /* calls that failed */
  char first[960];      /* the first of them, in words */
};

enum { DONE = -1, SHORT = -2, LATE = -3, LOST = -4 }; /* what to do, where it is no errno */
static const struct { const char *name; int value; } kinds[] = {
    {"EIO", EIO}, {"EACCES", EACCES}, {"ESTALE", ESTALE}, {"ENOSPC", ENOSPC}, {"EROFS", EROFS},
    {"EMFILE", EMFILE}, {"EDQUOT", EDQUOT}, {"short", SHORT}, {"late", LATE}, {"lost", LOST}};

static struct state *state;
static char folder[PATH_MAX];
static size_t length;
static int fault_class = -1, fault_kind, lasting;
static long fault_number;
static char ours[1 << 16]; /* descriptors of files in the folder */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) ((__typeof__(&name))real(#name, &found_##name))
#define FIND(name) static void *found_##name
static void *real(const char *name, void **found) {
  if (!*found) *found = dlsym(RTLD_NEXT, name);
  return *found;
}

/* Reads the variables; returns whether there are any. */
static int armed(void) {
  if (state) return 1;
  const char *path = getenv("INJECT_STATE"), *where = getenv("INJECT_FOLDER"), *fault;
  if (!path || !where) return 0;
  pthread_mutex_lock(&mutex);
  if (!state) {
    int file = syscall(SYS_openat, AT_FDCWD, path, O_RDWR);
    void *shared = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    syscall(SYS_close, file);
    if (shared == MAP_FAILED) abort();
    length = snprintf(folder, sizeof folder, "%s", where);
    if ((fault = getenv("INJECT_FAULT")) && *fault) {
      char class[16], kind[16];
      if (sscanf(fault, "%15[^:]:%ld:%15[^:]:%d", class, &fault_number, kind, &lasting) != 4) abort();
      for (int i = 0; i < CLASSES; i++)
        if (!strcmp(names[i], class)) fault_class = i;
      for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(kinds[i].name, kind)) fault_kind = kinds[i].value;
      if (fault_class < 0 || !fault_kind) abort();
    }
    state = shared;
  }
  pthread_mutex_unlock(&mutex);
  return 1;
}

static int is_ours(int descriptor) {
  return descriptor >= 0 && descriptor < (int)sizeof ours && ours[descriptor] && armed();
}

static void mark(int descriptor, int whose) {
  if (descriptor >= 0 && descriptor < (int)sizeof ours) ours[descriptor] = whose;
}

/* Whether a path is in the folder; relative ones are where their descriptor is. */
static int below(int directory, const char *path) {
  if (!path || !armed()) return 0;
  if (path[0] != '/') return directory != AT_FDCWD && is_ours(directory);
  return !strncmp(path, folder, length) && (path[length] == '/' || !path[length]);
}

/* Counts a call on something in the folder: DONE = let it be, or one of the above, or an errno. */
static int fate(int class, const char *call, const char *path, int descriptor) {
  long number = __atomic_fetch_add(&state->counts[class], 1, __ATOMIC_SEQ_CST);
  int due = class == fault_class && (number == fault_number || (lasting && number > fault_number));
  if (lasting && fault_kind == ENOSPC && state->injected && needs_space >> class & 1) due = 1;
  if (!due) return DONE;
  if (!__atomic_fetch_add(&state->injected, 1, __ATOMIC_SEQ_CST)) {
    char link[32], target[PATH_MAX] = "";
    if (!path) {
      snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
      if (syscall(SYS_readlinkat, AT_FDCWD, link, target, sizeof target - 1) < 0) target[0] = 0;
      path = target;
    }
    snprintf(state->first, sizeof state->first, "%s %s", call, path);
  }
  return fault_kind;
}

/* `expression` unless the call has to fail; `ours` = whether it is on something in the folder. */
#define CALL(mine, class, name, path, descriptor, type, expression)     \
  do {                                                                  \
    int what = (mine) ? fate(class, name, path, descriptor) : DONE;     \
    if (what > 0) return errno = what, (type)-1;                        \
    type result = expression;                                           \
    if (what == LOST && (long)result != -1) return errno = EIO, (type)-1; \
    return result;                                                      \
  } while (0)

/* Opening: the same with and without O_CREAT. */
static int opened(int directory, const char *path, int flags, mode_t mode) {
  FIND(openat);
  if (!below(directory, path)) {
    int file = REAL(openat)(directory, path, flags, mode);
    mark(file, 0);
    return file;
  }
  int what = fate(flags & O_CREAT ? CREATE : OPEN, "open", path, -1);
  if (what > 0) return errno = what, -1;
  int file = REAL(openat)(directory, path, flags, mode);
  mark(file, 1);
  return file;
}
#define MODE(flags)                                     \
  mode_t mode = 0;                                      \
  if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE) { \
    va_list rest;                                       \
    va_start(rest, flags);                              \
    mode = va_arg(rest, mode_t);                        \
    va_end(rest);                                       \
  }
int open(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE(flags) return opened(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE(flags) return opened(at, path, flags, mode); }
int creat(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

#define STREAM(name)                                                            \
  FILE *name(const char *path, const char *mode) {                              \
    FIND(name);                                                                 \
    int what = below(AT_FDCWD, path) ? fate(mode[0] == 'r' ? OPEN : CREATE, #name, path, -1) : DONE; \
    if (what > 0) return errno = what, NULL;                                    \
    FILE *file = REAL(name)(path, mode);                                        \
    if (file) mark(fileno(file), below(AT_FDCWD, path));                        \
    return file;                                                                \
  }
STREAM(fopen)
STREAM(fopen64)

int close(int file) {
  FIND(close);
  int mine = is_ours(file), what = mine ? fate(CLOSE, "close", NULL, file) : DONE;
  mark(file, 0);
  int result = REAL(close)(file);
  return what > 0 || what == LOST ? errno = what > 0 ? what : EIO, -1 : result;
}

/* Copies of descriptors. */
static int copied(int from, int to) {
  if (to >= 0) mark(to, from >= 0 && from < (int)sizeof ours && ours[from]);
  return to;
}
int dup(int file) { FIND(dup); return copied(file, REAL(dup)(file)); }
int dup2(int file, int to) { FIND(dup2); return copied(file, REAL(dup2)(file, to)); }
int dup3(int file, int to, int flags) { FIND(dup3); return copied(file, REAL(dup3)(file, to, flags)); }
#define CONTROL(name)                                                                      \
  int name(int file, int command, ...) {                                                   \
    FIND(name);                                                                            \
    va_list rest;                                                                          \
    va_start(rest, command);                                                               \
    void *argument = va_arg(rest, void *);                                                 \
    va_end(rest);                                                                          \
    int result = REAL(name)(file, command, argument);                                      \
    return command == F_DUPFD || command == F_DUPFD_CLOEXEC ? copied(file, result) : result; \
  }
CONTROL(fcntl)
CONTROL(fcntl64)

/* Reading and writing: a short one does about half of what was asked. */
#define HALF(size) ((size) > 1 ? ((size) + 1) / 2 : (size))
#define TRANSFER(class, name, parameters, size, ...)           \
  ssize_t name parameters {                                    \
    FIND(name);                                                \
    int what = is_ours(file) ? fate(class, #name, NULL, file) : DONE; \
    if (what > 0) return errno = what, -1;                     \
    if (what == SHORT) size = HALF(size);                      \
    return REAL(name)(__VA_ARGS__);                            \
  }
TRANSFER(READ, read, (int file, void *to, size_t size), size, file, to, size)
TRANSFER(READ, pread, (int file, void *to, size_t size, off_t at), size, file, to, size, at)
TRANSFER(READ, pread64, (int file, void *to, size_t size, off64_t at), size, file, to, size, at)
TRANSFER(READ, readv, (int file, const struct iovec *to, int size), size, file, to, size)
TRANSFER(READ, preadv, (int file, const struct iovec *to, int size, off_t at), size, file, to, size, at)
TRANSFER(READ, preadv64, (int file, const struct iovec *to, int size, off64_t at), size, file, to, size, at)
TRANSFER(WRITE, write, (int file, const void *of, size_t size), size, file, of, size)
TRANSFER(WRITE, pwrite, (int file, const void *of, size_t size, off_t at), size, file, of, size, at)
TRANSFER(WRITE, pwrite64, (int file, const void *of, size_t size, off64_t at), size, file, of, size, at)
TRANSFER(WRITE, writev, (int file, const struct iovec *of, int size), size, file, of, size)
TRANSFER(WRITE, pwritev, (int file, const struct iovec *of, int size, off_t at), size, file, of, size, at)
TRANSFER(WRITE, pwritev64, (int file, const struct iovec *of, int size, off64_t at), size, file, of, size, at)
#define COPY(name, parameters, ...)                                         \
  ssize_t name parameters {                                                 \
    FIND(name);                                                             \
    int what = is_ours(to)     ? fate(WRITE, #name, NULL, to)               \
               : is_ours(from) ? fate(READ, #name, NULL, from)              \
                               : DONE;                                      \
    if (what > 0) return errno = what, -1;                                  \
    if (what == SHORT) size = HALF(size);                                   \
    return REAL(name)(__VA_ARGS__);                                         \
  }
#include <sys/sendfile.h>
COPY(sendfile, (int to, int from, off_t *at, size_t size), to, from, at, size)
COPY(sendfile64, (int to, int from, off64_t *at, size_t size), to, from, at, size)
COPY(copy_file_range, (int from, off64_t *a, int to, off64_t *b, size_t size, unsigned flags), from, a, to, b, size, flags)

#define SHARED(name, offset)                                                              \
  void *name(void *at, size_t size, int protection, int flags, int file, offset place) {  \
    FIND(name);                                                                           \
    CALL(is_ours(file), MAP, #name, NULL, file, void *,                                   \
         REAL(name)(at, size, protection, flags, file, place));                           \
  }
SHARED(mmap, off_t)
SHARED(mmap64, off64_t)

/* On a descriptor, or on a path. */
#define ON_FILE(class, name, type, parameters, ...) \
  type name parameters { FIND(name); CALL(is_ours(file), class, #name, NULL, file, type, REAL(name)(__VA_ARGS__)); }
#define ON_PATH(class, name, type, at, parameters, ...) \
  type name parameters { FIND(name); CALL(below(at, path), class, #name, path, -1, type, REAL(name)(__VA_ARGS__)); }
ON_FILE(SYNC, fsync, int, (int file), file)
ON_FILE(SYNC, fdatasync, int, (int file), file)
ON_FILE(LOCK, flock, int, (int file, int what_), file, what_)
ON_FILE(WRITE, ftruncate, int, (int file, off_t size), file, size)
ON_FILE(WRITE, ftruncate64, int, (int file, off64_t size), file, size)
ON_FILE(STAT, fstat, int, (int file, struct stat *about), file, about)
ON_FILE(STAT, fstat64, int, (int file, struct stat64 *about), file, about)
ON_PATH(STAT, stat, int, AT_FDCWD, (const char *path, struct stat *about), path, about)
ON_PATH(STAT, stat64, int, AT_FDCWD, (const char *path, struct stat64 *about), path, about)
ON_PATH(STAT, lstat, int, AT_FDCWD, (const char *path, struct stat *about), path, about)
ON_PATH(STAT, lstat64, int, AT_FDCWD, (const char *path, struct stat64 *about), path, about)
ON_PATH(STAT, fstatat, int, at, (int at, const char *path, struct stat *about, int flags), at, path, about, flags)
ON_PATH(STAT, fstatat64, int, at, (int at, const char *path, struct stat64 *about, int flags), at, path, about, flags)
ON_PATH(STAT, statx, int, at, (int at, const char *path, int flags, unsigned mask, struct statx *about), at, path, flags, mask, about)
/* Libraries that were linked with an old glibc. */
int __xstat(int, const char *, struct stat *), __xstat64(int, const char *, struct stat64 *);
int __lxstat(int, const char *, struct stat *), __lxstat64(int, const char *, struct stat64 *);
int __fxstat(int, int, struct stat *), __fxstat64(int, int, struct stat64 *);
ON_PATH(STAT, __xstat, int, AT_FDCWD, (int version, const char *path, struct stat *about), version, path, about)
ON_PATH(STAT, __xstat64, int, AT_FDCWD, (int version, const char *path, struct stat64 *about), version, path, about)
ON_PATH(STAT, __lxstat, int, AT_FDCWD, (int version, const char *path, struct stat *about), version, path, about)
ON_PATH(STAT, __lxstat64, int, AT_FDCWD, (int version, const char *path, struct stat64 *about), version, path, about)
ON_FILE(STAT, __fxstat, int, (int version, int file, struct stat *about), version, file, about)
ON_FILE(STAT, __fxstat64, int, (int version, int file, struct stat64 *about), version, file, about)
ON_PATH(STAT, access, int, AT_FDCWD, (const char *path, int mode), path, mode)
ON_PATH(STAT, faccessat, int, at, (int at, const char *path, int mode, int flags), at, path, mode, flags)
ON_PATH(MAKE, mkdir, int, AT_FDCWD, (const char *path, mode_t mode), path, mode)
ON_PATH(MAKE, mkdirat, int, at, (int at, const char *path, mode_t mode), at, path, mode)
ON_PATH(REMOVE, unlink, int, AT_FDCWD, (const char *path), path)
ON_PATH(REMOVE, unlinkat, int, at, (int at, const char *path, int flags), at, path, flags)
ON_PATH(REMOVE, rmdir, int, AT_FDCWD, (const char *path), path)

/* Folders: the descriptor in a `DIR` is not seen by `open`, nor its end by `close`. */
DIR *opendir(const char *path) {
  FIND(opendir);
  int mine = below(AT_FDCWD, path), what = mine ? fate(LIST, "opendir", path, -1) : DONE;
  if (what > 0) return errno = what, NULL;
  DIR *directory = REAL(opendir)(path);
  if (directory) mark(dirfd(directory), mine);
  return directory;
}
int closedir(DIR *directory) { FIND(closedir); mark(dirfd(directory), 0); return REAL(closedir)(directory); }
#define NEXT(name, type)                                                                \
  type *name(DIR *directory) {                                                          \
    FIND(name);                                                                         \
    int file = dirfd(directory), what = is_ours(file) ? fate(LIST, #name, NULL, file) : DONE; \
    if (what > 0) return errno = what, NULL;                                            \
    return REAL(name)(directory);                                                       \
  }
NEXT(readdir, struct dirent)
NEXT(readdir64, struct dirent64)

/* Names. */
static int renamed(int from, const char *old, int to, const char *new, unsigned flags) {
  int what = below(to, new) || below(from, old) ? fate(RENAME, "rename", new, -1) : DONE;
  if (what > 0) return errno = what, -1;
  if (what == LATE) usleep(50000);
  int result = syscall(SYS_renameat2, from, old, to, new, flags);
  return what == LOST && !result ? errno = EIO, -1 : result;
}
int rename(const char *old, const char *new) { return renamed(AT_FDCWD, old, AT_FDCWD, new, 0); }
int renameat(int from, const char *old, int to, const char *new) { return renamed(from, old, to, new, 0); }
int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
  return renamed(from, old, to, new, flags);
}
int linkat(int from, const char *old, int to, const char *path, int flags) {
  FIND(linkat);
  CALL(below(to, path), RENAME, "linkat", path, -1, int, REAL(linkat)(from, old, to, path, flags));
}
int link(const char *old, const char *path) {
  FIND(link);
  CALL(below(AT_FDCWD, path), RENAME, "link", path, -1, int, REAL(link)(old, path));
}
